"""Small seeded models as graphs, exported once for each version of the exporter; they share a codec."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from antiphon import cli
from antiphon.backends.onnx.loading import stages
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint, describe
from antiphon.models.manifest import MANIFEST_NAME, file_entry, write_manifest
from antiphon_quantize.onnx_target import describe_graphs, write_graphs
from antiphon_quantize.recipe import COPIED, load_recipe
from tests.repo.tracked import ROOT
from tests.shared import fingerprint_of, made_once
from tests.support.make_checkpoint import make_checkpoint
from tests.support.make_pocket_checkpoint import make_pocket_checkpoint

FIRST = "moshi"
"""The kind whose codec graphs serve the others."""

MAKERS = ("quantize/antiphon_quantize", "server/antiphon/backends", "server/antiphon/models")
"""What exports a graph, beside the tests' own models."""

PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxscript", "safetensors", "torch")


@cache
def fingerprint() -> str:
    """Of all that these graphs are made of."""
    support = ROOT / "tests" / "support"
    models = (support / name for name in ("make_checkpoint.py", "make_pocket_checkpoint.py", "text.txt"))
    paths = [*(ROOT / maker for maker in MAKERS), *models]
    return fingerprint_of([*paths, Path(__file__), trained_codec()], PACKAGES)


def trained_codec() -> Path:
    """The folder of the built-in models' codec, as published."""
    return load_checkpoint("echo").file("mimi").parent


def source(kind: str) -> Checkpoint:
    """The small checkpoint itself, which the torch backend runs."""
    dtype = "float32" if kind == "tts" else "bfloat16"  # as the tests of the torch backend have it
    folder = made_once(
        f"onnx-source-{kind}", fingerprint(), lambda out: make_checkpoint(out, kind=kind, dtype=dtype)
    )
    return load_checkpoint(str(folder))


def exported(kind: str, *, int8_ring_bytes: int | None = None) -> Checkpoint:
    """Its graphs, by the command line for the first kind, and for the others what differs."""

    def export(out: Path) -> None:
        checkpoint = source(kind)
        if kind == FIRST:
            line = ["--target", "onnx", "--recipe", "float32", "--model", checkpoint.ref, str(out)]
            assert cli.run(["quantize", "--no-gate", *line]) == 0
        else:
            _borrow(checkpoint, exported(FIRST), out, int8_ring_bytes)

    return load_checkpoint(str(made_once(f"onnx-{kind}-{int8_ring_bytes}", fingerprint(), export)))


def pocket_source() -> Path:
    """The folder of the small Pocket-TTS model, with its voices."""

    def make(out: Path) -> None:
        make_pocket_checkpoint(out)

    return made_once("onnx-source-pocket", fingerprint(), make)


def exported_pocket() -> Checkpoint:
    """Its graphs, by the command line."""

    def export(out: Path) -> None:
        line = ["--target", "onnx", "--recipe", "float32", "--model", str(pocket_source()), str(out)]
        assert cli.run(["quantize", *line]) == 0

    return load_checkpoint(str(made_once("onnx-pocket", fingerprint(), export)))


def exported_on_a_trained_codec() -> Checkpoint:
    """A seeded duplex model on the codec of ``tiny``, with float32 graphs: codes and sounds are of speech."""

    def export(out: Path) -> None:
        make_checkpoint(out, mimi=trained_codec(), context=250, text_card=256)
        checkpoint, recipe = load_checkpoint(str(out)), load_recipe("onnx", "float32")
        made, _ = write_graphs(checkpoint, out, recipe, lambda *_: None)
        whole, graphs = describe(checkpoint), describe_graphs(checkpoint, out, made, {}, recipe, "float32")
        files, backends = {**whole.files, **graphs.files}, {**whole.backends, **graphs.backends}
        manifest = replace(whole, files=files, graphs=made, backends=backends)
        write_manifest(manifest, out / MANIFEST_NAME)

    return load_checkpoint(str(made_once("onnx-on-tiny", fingerprint(), export)))


def _borrow(checkpoint: Checkpoint, lender: Checkpoint, out: Path, int8_ring_bytes: int | None) -> None:
    assert checkpoint.file("mimi").read_bytes() == lender.file("mimi").read_bytes()
    out.mkdir(parents=True)
    borrowed = {name: lender.graphs[name] for name in stages(checkpoint.spec) if name in ("encode", "decode")}
    for graph in borrowed.values():
        shutil.copy(lender.file(graph.file), out)
    recipe = replace(load_recipe("onnx", "float32"), int8_ring_bytes=int8_ring_bytes)
    made, _ = write_graphs(checkpoint, out, recipe, lambda *_: None, leave_out=("encode", "decode"))
    sources = {role: name for role, name in COPIED.items() if role in checkpoint.files}
    for role, name in sources.items():
        shutil.copy(checkpoint.files[role], out / name)
    entries = {role: file_entry(out, name) for role, name in sources.items()}
    manifest = describe_graphs(checkpoint, out, {**borrowed, **made}, entries, recipe, "float32")
    write_manifest(manifest, out / MANIFEST_NAME)

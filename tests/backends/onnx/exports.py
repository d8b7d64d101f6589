"""Small seeded models as graphs, each exported once a test run; they share one codec, and its graphs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon import cli
from antiphon.backends.onnx.factory import stages
from antiphon.models.catalog import builtin_folder, load_checkpoint
from antiphon.models.checkpoint import Checkpoint, describe
from antiphon.models.manifest import MANIFEST_NAME, file_entry, write_manifest
from antiphon_quantize.onnx_target import COPIED, describe_graphs, write_graphs
from antiphon_quantize.recipe import load_recipe
from tests.shared import made_once
from tests.support.make_checkpoint import make_checkpoint

FIRST = "moshi"
"""The kind whose codec graphs serve the others."""


def source(kind: str, folders: pytest.TempPathFactory) -> Checkpoint:
    """The small checkpoint itself, which the torch backend runs."""
    dtype = "float32" if kind == "tts" else "bfloat16"  # as the tests of the torch backend have it
    folder = made_once(
        folders, f"onnx-source-{kind}", lambda out: make_checkpoint(out, kind=kind, dtype=dtype)
    )
    return load_checkpoint(str(folder))


def exported(kind: str, folders: pytest.TempPathFactory, *, int8_ring_bytes: int | None = None) -> Checkpoint:
    """Its graphs, by the command line for the first kind, and for the others what differs."""

    def export(out: Path) -> None:
        checkpoint = source(kind, folders)
        if kind == FIRST:
            line = ["--target", "onnx", "--recipe", "float32", "--model", checkpoint.ref, str(out)]
            assert cli.run(["quantize", "--no-gate", *line]) == 0
        else:
            _borrow(checkpoint, exported(FIRST, folders), out, int8_ring_bytes)

    return load_checkpoint(str(made_once(folders, f"onnx-{kind}-{int8_ring_bytes}", export)))


def exported_on_a_trained_codec(folders: pytest.TempPathFactory) -> Checkpoint:
    """A seeded duplex model on the codec of ``tiny``, with float32 graphs: codes and sounds are of speech."""

    def export(out: Path) -> None:
        make_checkpoint(out, mimi=builtin_folder("tiny"), context=250, text_card=256)
        checkpoint, recipe = load_checkpoint(str(out)), load_recipe("onnx", "float32")
        made, _ = write_graphs(checkpoint, out, recipe, lambda *_: None)
        whole, graphs = describe(checkpoint), describe_graphs(checkpoint, out, made, {}, recipe, "float32")
        files, backends = {**whole.files, **graphs.files}, {**whole.backends, **graphs.backends}
        manifest = replace(whole, files=files, graphs=made, backends=backends)
        write_manifest(manifest, out / MANIFEST_NAME)

    return load_checkpoint(str(made_once(folders, "onnx-on-tiny", export)))


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

"""Sharing of graphs between built-in models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.models.catalog import builtin_folder, load_checkpoint
from antiphon.models.spec import PipelineKind
from lab.tools.ship_graphs import codec_graphs, fits, shared_codec, without_graphs


def test_a_model_on_anothers_codec_leans_on_its_graphs() -> None:
    echo, tiny = (load_checkpoint(name) for name in ("echo", "tiny"))
    assert tiny.manifest is not None
    assert shared_codec(builtin_folder("tiny"), tiny) == ({}, {})
    graphs, files = shared_codec(builtin_folder("echo"), echo)
    assert graphs == {name: tiny.graphs[name] for name in ("encode", "decode")}
    assert {role: entry.path for role, entry in files.items()} == {
        "onnx.encode": "../tiny/encode.onnx",
        "onnx.decode": "../tiny/decode.onnx",
    }
    other = replace(echo, spec=replace(echo.spec, mimi=replace(echo.spec.mimi, codebooks=4)))
    assert fits(tiny.manifest, echo)
    assert not fits(tiny.manifest, other)


@pytest.mark.parametrize(
    ("kind", "needed"), [(PipelineKind.STT, {"encode": 8}), (PipelineKind.TTS, {"decode": 8})]
)
def test_a_model_that_only_hears_or_only_speaks_leans_on_half_a_codec(
    kind: PipelineKind, needed: dict[str, int]
) -> None:
    duplex, leaning = load_checkpoint("tiny"), load_checkpoint("echo")
    assert duplex.spec.lm is not None
    dep_q = 0 if kind is PipelineKind.STT else 8
    spec = replace(duplex.spec, kind=kind, lm=replace(duplex.spec.lm, dep_q=dep_q))
    model = replace(leaning, spec=spec)
    assert codec_graphs(model.spec) == needed
    assert shared_codec(builtin_folder("echo"), model)[0].keys() == needed.keys()


def test_old_graphs_are_forgotten_before_new_ones_are_made() -> None:
    manifest = load_checkpoint("tiny").manifest
    assert manifest is not None
    bare = without_graphs(manifest)
    assert not bare.graphs
    assert set(manifest.files) - set(bare.files) == {graph.file for graph in manifest.graphs.values()}
    assert "onnx" in manifest.backends.keys() - bare.backends.keys()

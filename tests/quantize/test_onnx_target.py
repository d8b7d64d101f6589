"""``antiphon quantize --target onnx``: refusals, and shared graphs of built-in models.

What it writes is run by the contract suite and the tests of the onnx backend.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon import cli
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import make_backend
from antiphon.errors import MissingExtraError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import GraphFormat
from antiphon_quantize import main as module
from antiphon_quantize import onnx_target
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.onnx_target import stage_makers
from antiphon_quantize.recipe import load_recipe
from tests.backends.onnx.exports import exported, source
from tests.support.make_checkpoint import make_checkpoint


def test_a_model_that_is_guided_by_doubled_rows_is_refused(tmp_path: Path) -> None:
    conditions: dict[str, Any] = {"conditioners": {}, "fuser": {}, "cross_attention": False}
    config = {"audio_delay": 0.64, "second_stream_ahead": 2, "cfg_coef": 2.5}
    source = make_checkpoint(tmp_path / "tts", kind="tts", tts_config=config, **conditions)
    with pytest.raises(UnsupportedError, match=r"tts is guided by 2\.5, .* only the torch backend runs it"):
        stage_makers(load_checkpoint(str(source)))


def test_weights_that_are_int8_already_are_refused(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "moshi", kind="moshi")
    line = [
        "quantize",
        "--no-gate",
        "--target",
        "torch",
        "--recipe",
        "int8",
        "--model",
        str(source),
        str(tmp_path / "int8"),
    ]
    assert cli.run(line) == 0
    with pytest.raises(UnsupportedError, match=r"has \d+ INT8 layers; start from its float weights"):
        stage_makers(load_checkpoint(str(tmp_path / "int8")))


def test_the_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(MissingExtraError, match=r"'onnxscript'.*pip install .*\[quantize\]'"):
        module.main(["--target", "onnx", "--recipe", "float32", "--model", "echo", str(tmp_path / "out")])


def test_the_float_recipe_rounds_nothing() -> None:
    recipe = load_recipe("onnx", "float32")
    assert (recipe.bits, recipe.quantize) == (32, ())


def test_the_command_line_makes_a_model_in_4_bits_that_speaks(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its float32 graphs are those that the command line made of the same model before."""
    out = tmp_path / "int4"
    before, model = exported("moshi"), source("moshi").ref

    def export_stage(stage: ExportedStage, path: Path, role: str) -> GraphFormat:
        shutil.copy(before.file(role), path)
        return next(graph for graph in before.graphs.values() if graph.file == role)

    monkeypatch.setattr(onnx_target, "export_stage", export_stage)
    capsys.readouterr()
    line = ["--target", "onnx", "--recipe", "int4", "--model", model, str(out)]
    assert cli.run(["quantize", "--no-gate", *line]) == 0
    assert "encode.onnx: 0.3 MB of weights became" in capsys.readouterr().out
    after = load_checkpoint(str(out))
    recipe = after.quantization_for("onnx")
    assert recipe is not None
    assert (recipe.bits, recipe.group_size) == (4, 128)
    for graph in before.graphs.values():
        assert after.file(graph.file).stat().st_size < 0.7 * before.file(graph.file).stat().st_size
    heard = np.random.default_rng(0).normal(0, 0.1, (20, 1, 1920)).astype(np.float32)
    row, first = np.zeros(1, np.int32), np.arange(20) == 0
    loudness = []
    for checkpoint in (before, after):
        backend = make_backend("onnx", checkpoint, slots=1, options={"threads": 1})
        inputs = (StepInputs(row, first[i : i + 1], frame) for i, frame in enumerate(heard))
        frames = [outputs.pcm for outputs in map(backend.step, inputs) if outputs.emitted[0]]
        assert len(frames) == 20 - before.spec.delay_frames
        loudness.append(float(np.sqrt(np.mean([np.square(pcm) for pcm in frames if pcm is not None]))))
    assert loudness[1] == pytest.approx(loudness[0], rel=0.5)

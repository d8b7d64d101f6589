"""The gate on ONNX graphs: the same damage is found in their output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import Verdict
from antiphon_quantize.gate_run import Material, Side, open_eval_model
from antiphon_quantize.gate_sound import built_in_clips
from tests.backends.onnx.exports import exported_on_a_trained_codec
from tests.quantize import planted
from tests.support.rounded import rounded

MATERIAL = Material(recordings=built_in_clips()[:3], frames=30, turns=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    """A model in float32, and in 8 bits."""
    whole = exported_on_a_trained_codec()
    return whole, rounded(whole, "int8", tmp_path_factory.mktemp("gate") / "int8")


def verdict_of(baseline: Checkpoint, candidate: Checkpoint) -> Verdict:
    limits = limits_of(candidate, "onnx")
    return judge(Side(baseline, "onnx"), Side(candidate, "onnx"), limits, MATERIAL)


def failures(verdict: Verdict) -> set[str]:
    return {row.measure.name for row in verdict.failed}


def test_an_honest_int8_passes_codec_and_all(pair: tuple[Checkpoint, Checkpoint]) -> None:
    verdict = verdict_of(*pair)
    assert failures(verdict) == set()
    words = {row.measure.name: (row.word, row.measure.detail) for row in verdict.rows}
    for name in ("weights nonfinite", "weights change"):
        assert words[name][0] == "not measured"
        assert words[name][1].startswith("read from torch's files only, not from the graphs of ")
    found = {row.measure.name: row.measure.value for row in verdict.rows}
    assert 0 < (found["text kl"] or 0) < 0.001
    assert 25 < (found["codec si-sdr"] or 0) < 60
    assert 0.5 < (found["codec codes"] or 0) < 1
    assert abs(found["codec stoi loss"] or 1) < 0.005


@pytest.mark.parametrize(
    ("graph", "damage", "expected"),
    [
        ("lm", planted.too_large_in_graph, {"text kl", "semantic kl", "acoustic 8 kl"}),
        ("lm", planted.swapped_in_graph, {"text kl", "text agreement", "semantic kl"}),
        ("lm", planted.overflown_in_graph, {"logits nonfinite", "text kl", "text agreement"}),
        ("lm", planted.biased_in_graph, {"text end of padding shift"}),
        ("decode", planted.too_large_in_graph, {"codec si-sdr"}),
    ],
    ids=["scales off by a tenth", "swapped scales", "overflow", "shifted logit", "the codec's scales"],
)
def test_damage_to_a_graph_is_found(
    pair: tuple[Checkpoint, Checkpoint],
    tmp_path: Path,
    graph: str,
    damage: Callable[[planted.Graph], None],
    expected: set[str],
) -> None:
    verdict = verdict_of(pair[0], planted.damaged_graph(pair[1], tmp_path / "damaged", graph, damage))
    found = failures(verdict)
    assert expected <= found
    if graph == "decode":
        assert found == {name for name in found if name.startswith("codec")}


def test_a_dropped_delay_is_named(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> None:
    assert {"delays", "text kl"} <= failures(
        verdict_of(pair[0], planted.without_delay(pair[1], tmp_path / "damaged"))
    )


def test_graphs_think_what_their_modules_think(pair: tuple[Checkpoint, Checkpoint]) -> None:
    checkpoint = pair[0]
    torch, onnx = (open_eval_model(checkpoint, backend, rows=2) for backend in ("torch", "onnx"))
    pcm = np.random.default_rng(0).normal(0, 0.1, (2, 12 * 1920)).astype(np.float32)
    codes = torch.encode(pcm)
    assert np.array_equal(codes, onnx.encode(pcm))
    assert np.abs(torch.decode(codes) - onnx.decode(codes)).max() < 1e-5
    parameters = [SamplingParameters(text_seed=row, audio_seed=row) for row in range(2)]
    said = torch.answer(codes, parameters)
    assert said.shape == (2, 11, 9)
    assert np.array_equal(said, onnx.answer(codes, parameters))
    thoughts = zip(
        torch.forced_logits(codes, said).streams(), onnx.forced_logits(codes, said).streams(), strict=True
    )
    for (_, one), (_, other) in thoughts:
        assert one.shape[:2] == (2, 11)
        assert np.abs(one - other).max() < 1e-4


def test_a_shifted_logit_is_found_in_a_trained_model_too(tmp_path: Path) -> None:
    """Where words begin is open in a tenth of its frames; in all others the token is out of the question."""
    tiny = load_checkpoint("tiny")
    damaged = planted.damaged_graph(tiny, tmp_path / "damaged", "lm", planted.biased_in_graph)
    verdict = verdict_of(tiny, damaged)
    found = {row.measure.name: row.measure for row in verdict.rows}
    assert "text end of padding shift" in failures(verdict)
    assert found["text end of padding shift"].value == pytest.approx(0.5, abs=0.02)
    assert found["text end of padding shift"].detail.startswith("likelier, give or take 0.0")
    assert found["text kl"].value is not None
    assert found["text kl"].value < 0.002

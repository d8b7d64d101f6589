"""The gate on the mlx backend: an identical model and rounding pass, damage fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import Verdict
from antiphon_quantize.gate_run import Material, Side, open_eval_model
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.gate_subject import GREEDY
from antiphon_quantize.main import main
from tests.quantize import planted
from tests.support.make_checkpoint import make_checkpoint

MATERIAL = Material(recordings=built_in_clips()[:2], frames=20, turns=1)


def made(folder: Path, kind: str) -> tuple[Checkpoint, Checkpoint]:
    """A model, and what the recipe q8 makes of it."""
    source = make_checkpoint(folder / "source", kind=kind, dim=64)
    line = ["--no-gate", "--target", "mlx", "--recipe", "q8", "--model", str(source), str(folder / "q8")]
    assert main(line) == 0
    return load_checkpoint(str(source)), load_checkpoint(str(folder / "q8"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    return made(tmp_path_factory.mktemp("gate-mlx"), "moshi")


def verdict_of(baseline: Side, candidate: Checkpoint) -> Verdict:
    return judge(baseline, Side(candidate, "mlx"), limits_of(candidate, "mlx"), MATERIAL)


def values(verdict: Verdict) -> dict[str, float]:
    return {row.measure.name: row.measure.value for row in verdict.rows if row.measure.value is not None}


def test_what_it_would_say_in_its_own_place_is_what_it_said(pair: tuple[Checkpoint, Checkpoint]) -> None:
    judged = open_eval_model(pair[0], "mlx", rows=2)
    heard = np.random.default_rng(0).integers(0, 64, (2, 24, 8))
    said = judged.answer(heard, [GREEDY] * 2)
    thoughts = judged.forced_logits(heard, said)
    told = slice(None, -1)  # the last frame's voice comes with the text of one that was not completed
    assert (thoughts.text.argmax(axis=2) == said[:, :, 0]).all()
    assert (thoughts.voice.argmax(axis=3) == said[:, :, 1:])[:, told].all()


def test_one_model_on_two_backends_is_one_model(pair: tuple[Checkpoint, Checkpoint]) -> None:
    found = values(verdict_of(Side(pair[0], "torch"), pair[0]))
    assert abs(found["text kl"]) < 1e-6
    assert abs(found["acoustic 8 kl"]) < 1e-6
    assert found["semantic agreement"] == found["codec codes"] == 1
    assert found["codec si-sdr"] > 60


def test_rounding_is_seen_and_scales_that_are_off_more(
    pair: tuple[Checkpoint, Checkpoint], tmp_path: Path
) -> None:
    def too_large(tensors: planted.Tensors) -> None:
        for name in tensors:
            if name.endswith(".scales"):
                tensors[name] *= 1.1

    damaged = planted.damaged(pair[1], tmp_path / "damaged", too_large, "model.q8.safetensors")
    honest, broken = (values(verdict_of(Side(pair[0], "mlx"), one)) for one in (pair[1], damaged))
    for stream in ("text", "semantic", "acoustic 8"):
        assert 0 < honest[f"{stream} kl"] < 0.01
        assert broken[f"{stream} kl"] > 5 * honest[f"{stream} kl"]


def test_a_listener_is_judged_by_its_text_and_its_pauses(tmp_path: Path) -> None:
    source, rounded = made(tmp_path, "stt")
    verdict = verdict_of(Side(source, "torch"), rounded)
    assert [row.measure.name for row in verdict.failed] == []
    assert 0 < values(verdict)["pauses worst"] < 0.1

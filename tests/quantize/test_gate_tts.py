"""The gate for text to speech: equal input, judged by text requests and voice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.script import ScriptRules
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_limits import Verdict
from antiphon_quantize.gate_run import Material, Side, open_eval_model
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.gate_subject import GREEDY
from antiphon_quantize.main import main
from tests.quantize import planted
from tests.support.make_checkpoint import make_checkpoint

MATERIAL = Material(recordings=built_in_clips()[:3], frames=40, turns=1)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Checkpoint]:
    """A tts model, and what the recipe int8 makes of it."""
    folder = tmp_path_factory.mktemp("gate-tts")
    source = make_checkpoint(folder / "source", kind="tts")
    assert main(["--no-gate", "--model", str(source), str(folder / "int8")]) == 0
    return load_checkpoint(str(source)), load_checkpoint(str(folder / "int8"))


def verdict_of(baseline: Checkpoint, candidate: Checkpoint) -> Verdict:
    limits = limits_of(candidate, "torch")
    return judge(Side(baseline, "torch"), Side(candidate, "torch"), limits, MATERIAL)


def test_what_it_would_say_in_its_own_place_is_what_it_said(pair: tuple[Checkpoint, Checkpoint]) -> None:
    judged = open_eval_model(pair[0], "torch", rows=3)
    heard = np.zeros((3, 40, 0), np.int64)
    said = judged.answer(heard, [GREEDY] * 3)
    thoughts = judged.forced_logits(heard, said)
    lm = pair[0].spec.lm
    assert lm is not None
    silent = ScriptRules.of(pair[0].spec).audio_delay
    assert 0 < silent < said.shape[1] - lm.max_delay
    assert (said[:, :silent, 1:] == -1).all()
    assert (said[:, silent:] >= 0).all()
    assert (thoughts.text.argmax(axis=2) == said[:, :, 0]).all()
    told = slice(silent, -lm.max_delay)  # the last frames' voice comes with text that was not completed
    assert (thoughts.voice.argmax(axis=3) == said[:, :, 1:])[:, told].all()
    assert len(np.unique(said[:, silent:, 1:])) > 20  # a voice that says one thing would prove nothing


def test_a_copy_is_the_same_and_an_honest_int8_passes(pair: tuple[Checkpoint, Checkpoint]) -> None:
    same = {row.measure.name: row.measure.value for row in verdict_of(pair[0], pair[0]).rows}
    assert same["text kl"] == same["acoustic 8 kl"] == 0
    assert same["semantic agreement"] == 1
    verdict = verdict_of(*pair)
    found = {row.measure.name: row.measure.value for row in verdict.rows}
    assert verdict.passed
    assert 0 < (found["text kl"] or 0) < 0.002
    assert 0 < (found["acoustic 8 kl"] or 0) < 0.01
    assert verdict.material == "3 texts, 10 s"


def test_scales_that_are_off_are_found(pair: tuple[Checkpoint, Checkpoint], tmp_path: Path) -> None:
    damaged = planted.damaged(pair[1], tmp_path / "damaged", planted.too_large)
    failed = {row.measure.name for row in verdict_of(pair[0], damaged).failed}
    assert {"weights change", "text kl", "semantic kl", "acoustic 8 kl"} <= failed

"""Timing with a fake clock: every number is exact."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.backends.base import Backend, StepInputs, StepOutputs
from antiphon.backends.registry import make_backend
from antiphon.errors import ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.bench.card import TickPlan
from antiphon_quantize.bench.player import LEAST_TICKS, TickTurn, take_turn
from tests.quantize.bench.fakes import FRAME_MS, FakeBackend, FakeClock, as_backend
from tests.support.make_checkpoint import make_checkpoint


def measured(backend: FakeBackend, rows: int, plan: TickPlan) -> TickTurn:
    return take_turn(as_backend(backend), rows, plan, clock=backend.clock, sleep=backend.clock.sleep)


def test_paced_ticks_begin_when_their_frames_are_complete() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock, [10.0, 20.0])
    turn = take_turn(
        as_backend(backend), 1, TickPlan((1,), 0.8, 1, lead_frames=0), clock=clock, sleep=clock.sleep
    )
    assert turn.tick_s == pytest.approx([0.01, 0.02] * 5)
    assert turn.late == 0
    # Ten frames of 80 ms, the last of which is taken at once; then 0.2 s back to back at 15 ms in the mean.
    assert turn.frames_s == pytest.approx(0.21)
    assert turn.frames == 14
    assert clock.now_s == pytest.approx(1000 + 9 * 0.08 + 0.02 + turn.frames_s)


def test_a_slow_tick_counts_against_those_it_delays() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock, [200.0, 30.0, 30.0, 30.0, 30.0, 30.0])
    plan = TickPlan((1,), 6 * FRAME_MS / 1000, 1, lead_frames=0)
    turn = measured(backend, 1, plan)
    # Ends 200, 230, 260, 290, 350, 430 ms after the first frame; due at 0, 80, 160, 240, 320, 400.
    assert turn.late == 3
    assert turn.tick_s == pytest.approx([0.2, 0.03, 0.03, 0.03, 0.03, 0.03])


@settings(max_examples=30)
@given(st.integers(1, 8), st.integers(0, 5), st.floats(0.01, 2.0), st.floats(5.0, 60.0))
def test_whatever_is_asked_is_measured(rows: int, lead: int, seconds: float, tick_ms: float) -> None:
    clock = FakeClock()
    backend = FakeBackend(clock, [tick_ms], slots=8)
    turn = take_turn(
        as_backend(backend), rows, TickPlan((rows,), seconds, 1, lead), clock=clock, sleep=clock.sleep
    )
    paced = max(LEAST_TICKS, math.ceil(seconds / 0.08))
    assert turn.tick_s == pytest.approx([tick_ms / 1000] * paced)
    assert turn.late == 0
    assert turn.frames / turn.frames_s == pytest.approx(rows * 1000 / tick_ms)
    assert len(backend.steps) == lead + paced + turn.frames // rows
    first, *others = backend.steps
    assert first.rows.tolist() == list(range(rows))
    assert first.reset.all()
    for step in others:
        assert step.rows.tolist() == first.rows.tolist()
        assert not step.reset.any()


def test_more_rows_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 rows cannot be measured on a backend that has 4"):
        measured(FakeBackend(FakeClock(), [1.0]), 9, TickPlan((9,), 1.0, 1, 0))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (((), 1.0, 1, 0), r"rows \[\] must be ascending whole numbers from 1"),
        (((2, 1), 1.0, 1, 0), r"rows \[2, 1\] must be ascending"),
        (((1, 1), 1.0, 1, 0), r"rows \[1, 1\] must be ascending"),
        (((0, 1), 1.0, 1, 0), r"rows \[0, 1\] must be ascending"),
        (((1,), 0.0, 1, 0), "seconds = 0; a turn needs more than 0"),
        (((1,), math.nan, 1, 0), "seconds = nan; a turn needs more than 0"),
        (((1,), 1.0, 0, 0), "turns = 0 is below 1"),
        (((1,), 1.0, 1, -1), "lead_frames = -1 is below 0"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(
    plan: tuple[tuple[int, ...], float, int, int], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        TickPlan(*plan)


@pytest.mark.parametrize("kind", ["tts", "stt"])
def test_every_kind_of_model_is_kept_busy(kind: str, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(str(make_checkpoint(tmp_path / kind, kind=kind)))
    backend = make_backend("torch", checkpoint, slots=2, device="cpu", options={"threads": 1})
    busy: list[bool] = []

    class Watched:
        info = backend.info

        def step(self, inputs: StepInputs) -> StepOutputs:
            out = backend.step(inputs)
            busy.append(bool(np.all(out.consumed | out.emitted)))
            return out

    milliseconds = itertools.count()
    turn = take_turn(
        cast("Backend", Watched()),
        2,
        TickPlan((2,), 0.4, 1, 40),
        clock=lambda: next(milliseconds) / 1000,
        sleep=lambda seconds: None,
    )
    assert len(turn.tick_s) == 5
    assert len(busy) > 45
    assert all(busy)

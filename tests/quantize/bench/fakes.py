"""A fake clock, and a backend whose ticks take given times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import cast

import msgspec

from antiphon.backends.base import Backend, BackendInfo, IntArray, StepInputs, StepOutputs
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.bench.card import (
    SCHEMA,
    Card,
    Entry,
    MeasuredMemory,
    Metric,
    Quality,
    SubjectFacts,
    TickPlan,
)
from antiphon_quantize.bench.player import NearPlayer, TickTurn
from antiphon_quantize.bench.run import summarise, timely_rows
from antiphon_quantize.bench.subject import describe
from tests.support.null_backend import NullBackend

FRAME_MS = 80.0


def read_card(path: Path) -> Card:
    return msgspec.json.decode(path.read_bytes(), type=Card, strict=False)


@dataclass
class FakeClock:
    """Seconds, moved on by whoever sleeps or works."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class CountingClock:
    """A clock that moves on by ``step_s`` whenever it is asked: whatever is timed takes exactly that."""

    step_s: float
    now_s: float = 1000.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class FakeBackend:
    """A null backend whose ticks take ``tick_ms`` by turns, or by their rows, on a fake clock."""

    clock: FakeClock
    tick_ms: Iterable[float] | Callable[[int], float]
    slots: int = 4
    steps: list[StepInputs] = field(default_factory=list)
    closed: bool = False

    def __post_init__(self) -> None:
        self._null = NullBackend(load_checkpoint("echo").spec, self.slots)
        self._times = None if callable(self.tick_ms) else cycle(self.tick_ms)

    @property
    def info(self) -> BackendInfo:
        return self._null.info

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        return self._null.plan(rows, is_fixed=is_fixed)

    def step(self, inputs: StepInputs) -> StepOutputs:
        self.steps.append(inputs)
        if self._times is not None:
            took_ms = next(self._times)
        else:
            assert callable(self.tick_ms)
            took_ms = self.tick_ms(inputs.count)
        self.clock.now_s += took_ms / 1000
        return self._null.step(inputs)

    def warm_up(self, progress: Callable[[int, int, str], None]) -> None:
        self._null.warm_up(progress)

    def close(self) -> None:
        self.closed = True


def as_backend(fake: FakeBackend) -> Backend:
    """A fake where a whole backend is asked for: what it lacks is not called."""
    return cast("Backend", fake)


def fake_player(clock: FakeClock, backend: FakeBackend, plan: TickPlan, threads: int = 2) -> NearPlayer:
    facts = describe(load_checkpoint("echo"), backend.info, threads)
    return NearPlayer(as_backend(backend), facts, plan, clock, clock.sleep, lambda: 100_000_000)


PLAN = TickPlan((1, 4), seconds=0.8, turns=3, lead_frames=2)


def facts() -> SubjectFacts:
    return describe(load_checkpoint("echo"), NullBackend(load_checkpoint("echo").spec, 4).info, 2)


def turn(rows: int, tick_ms: Iterable[float], frames_per_s: float = 100.0, late: int = 0) -> TickTurn:
    return TickTurn(rows, tuple(ms / 1000 for ms in tick_ms), late, 100, 100 / frames_per_s)


QUALITY = Quality(
    baseline="plain",
    is_passed=False,
    material="4 recordings, 31 s",
    metrics=(
        Metric("delays", 0.0, None, None, "<= 0", "PASS", ""),
        Metric("text nll", 0.125, 1.5, 1.625, "<= 0.1", "FAIL", "nats"),
        Metric("text agreement", 0.9375, None, None, ">= 0.9", "PASS", ""),
        Metric("codec pesq loss", None, None, None, "", "not measured", "no module"),
    ),
    note="",
)


def made_card() -> Card:
    """Two models, the second twice as fast and judged against the first."""
    plain = [turn(rows, [10.0 * rows] * 10, 100.0) for _ in range(3) for rows in PLAN.rows]
    small = [turn(rows, [5.0 * rows] * 9 + [50.0], 200.0, late=1) for _ in range(3) for rows in PLAN.rows]
    results = summarise({"plain": plain, "small": small}, PLAN, frame_ms=FRAME_MS, baseline="plain")
    memory = MeasuredMemory(150_000_000, None, 2_500_000_000, 1_000)
    return Card(
        schema=SCHEMA,
        started_at="2026-11-21T00:00:00+00:00",
        command="antiphon bench --model ./plain",
        system="Linux 6.1 x86_64",
        memory_bytes=2**34,
        load_average=0.1,
        plan=PLAN,
        baseline="plain",
        entries=tuple(
            Entry(label, facts(), results[label], *timely_rows(results[label], FRAME_MS), memory, quality)
            for label, quality in (("plain", None), ("small", QUALITY))
        ),
    )

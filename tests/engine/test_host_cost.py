"""The Python cost of a tick does not depend on its rows, except for array arithmetic."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.loop import least_tick_s
from antiphon.engine.metrics import EngineMetrics
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from tests.engine.bench import Calls
from tests.support.bulk_owner import BulkOwner
from tests.support.null_backend import NullBackend

SLOTS = 64
SPEC = ModelSpec(
    name="nothing",
    kind=PipelineKind.CODEC,
    family="none",
    mimi=MimiSpec(sample_rate=24_000, frame_rate=12.5, codebooks=8, cardinality=2048),
)


def opcodes(work: Callable[[], object]) -> int:
    """The byte codes that ``work`` executes on this thread."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # what other tests left has finalizers in Python
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


class Bulk:
    """An engine by hand, and one owner of all its rows."""

    def __init__(self) -> None:
        self.now_s = 100.0
        metrics = EngineMetrics(CollectorRegistry(), model="nothing")
        config = EngineConfig(slots=SLOTS)
        backend = NullBackend(SPEC, SLOTS, clock=self.clock, sleep=self.sleep)
        self.engine = Engine(backend, config, clock=self.clock, metrics=metrics)
        self.engine.prepare()
        calls = Calls(self.engine, is_started=True)
        sessions = [calls.submit() for _ in range(SLOTS)]
        self.engine.loop.tick_once()
        self.owner = BulkOwner(self.engine, sessions)
        self.pcm = np.zeros((SLOTS, SPEC.frame_samples), np.float32)
        self.exchange(SLOTS)  # rows, first audio, metrics: what comes once

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def exchange(self, rows: int) -> None:
        """A frame of each of so many rows, and its reply."""
        self.owner.push(np.arange(rows), self.pcm[:rows], self.now_s)
        assert self.engine.loop.tick_once()
        taken = self.owner.take()
        assert taken.place.size == rows
        self.owner.sent(taken, self.now_s)
        assert self.owner.take().place.size == 0


def test_a_tick_of_many_rows_runs_no_more_python_than_one_of_few() -> None:
    bulk = Bulk()
    few, many = (opcodes(lambda rows=rows: bulk.exchange(rows)) for rows in (2, SLOTS))  # type: ignore[misc]
    assert few > 100, "it is traced"
    assert many == few


@pytest.mark.parametrize(
    ("sessions", "least_ms"), [(0, 5.0), (128, 5.0), (256, 10.0), (384, 15.0), (512, 20.0), (2048, 20.0)]
)
def test_short_ticks_come_less_often_the_more_sessions_there_are(sessions: int, least_ms: float) -> None:
    assert least_tick_s(0.005, sessions) == pytest.approx(least_ms / 1000.0)

"""The step of ``lab.bench.gpu_session`` that runs calls on the real engine, in real time, at random
phases."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import RowSnapshot, StepInputs, StepOutputs
from antiphon.backends.host import HostBackend
from antiphon.config import ServerConfig
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.loop import Wake
from antiphon.engine.metrics import EngineMetrics
from lab.bench.engine_overhead import FRAME_S, Owner
from lab.bench.gpu_card import Task, Values, card_here, make_backend
from lab.bench.gpu_simulation import simulate
from lab.bench.gpu_ticks import full_row

TURN_S = 0.001
ROWS_A_STEP = 2
SETTLE_S, COUNTED_S = 16.0, 30.0
SIMULATED_S = 10.0
SMALL_SETTLE_S, SMALL_COUNTED_S = 1.0, 2.0


class Filling:
    """A backend whose rings are filled once, on the engine's own thread; it records the times of its
    steps.

    Two rows are filled a step: a row of 7B takes 31 ms, and the engine's rings must not wrap meanwhile.
    """

    def __init__(self, backend: HostBackend, context: int) -> None:
        """Wrap a backend."""
        self._backend, self._context = backend, context
        self.is_due = threading.Event()
        self._full: RowSnapshot | None = None
        self._unfilled: list[int] = []
        self.steps_ms: list[float] = []
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> object:
        """Forward all other attributes to the backend."""
        return getattr(self._backend, name)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Run one tick; before it, if due, fill the rings of the next rows."""
        if self.is_due.is_set():
            self.is_due.clear()
            self._full = full_row(self._backend, self._context)
            self._unfilled = [*range(self._backend.info.slots)]
        if self._full is not None:
            for row in self._unfilled[:ROWS_A_STEP]:
                self._backend.restore(row, self._full)
            del self._unfilled[:ROWS_A_STEP]
            if not self._unfilled:
                self._full = None  # its memory is that of a row
        start_s = time.perf_counter()
        outputs = self._backend.step(inputs)
        self.steps_ms.append(1000 * (time.perf_counter() - start_s))
        self.rows.append(inputs.count)
        return outputs


def paced(task: Task) -> Values:
    """Run ``task.batch`` calls with full rings; returns quantiles of a frame's latency, from its due time
    until its reply is taken."""
    backend = Filling(make_backend(task), task.size.lm["context"])
    sys.setswitchinterval(ServerConfig().switch_interval_ms / 1000.0)  # as in the server
    bell, start_s = Wake(), time.perf_counter()
    engine = Engine(
        backend,  # type: ignore[arg-type]
        EngineConfig(slots=task.batch),
        metrics=EngineMetrics(CollectorRegistry(), model="paced"),
        on_tick=bell.nudge,
    )
    engine.start()
    warm_s = time.perf_counter() - start_s
    settle_s, counted_s = (SMALL_SETTLE_S, SMALL_COUNTED_S) if task.is_small else (SETTLE_S, COUNTED_S)
    owner = Owner(engine, task.batch, bell, TURN_S)
    owner.run(settle_s / 2)
    backend.is_due.set()
    owner.run(settle_s / 2)
    owner.latencies_s.clear()
    backend.steps_ms.clear()
    backend.rows.clear()
    late = owner.late
    owner.run(counted_s)
    engine.stop(5.0)
    latencies_ms = 1000 * np.concatenate(owner.latencies_s)
    p50_ms, p99_ms, _ = simulate(task.size, task.batch, card_here(), form=task.form, seconds=SIMULATED_S)
    return {
        "calls": task.batch,
        "bits": task.bits,
        "warm_up_s": warm_s,
        "frames": latencies_ms.size,
        "frames_due": round(task.batch * counted_s / FRAME_S),
        "late": owner.late - late,
        "latency_ms": quantiles(latencies_ms),
        "computed_latency_ms": {"p50": p50_ms, "p99": p99_ms},
        "step_ms": quantiles(np.array(backend.steps_ms)),
        "rows_a_step": float(np.mean(backend.rows)),
    }


def quantiles(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Values:
    """Return p50, p99 and p99.9 of the values."""
    return {f"p{share:g}": float(np.percentile(values, share)) for share in (50, 99, 99.9)}

"""Measures the engine's cost per frame: rings, scheduling, counters, metrics, wake-ups; the model has no
cost.

    python -m lab.bench.engine_overhead                              32, 128, 512 and 2048 sessions, 10 s each
    python -m lab.bench.engine_overhead --sessions 512 --seconds 30 --json

The engine runs on its thread with the null backend, whose step takes no time. One owner's thread writes whole
frames in real time at random phases, takes every reply, and counts late ones. It runs after each tick, like a
front end that the engine wakes, or every --turn-ms. Latency counts from the time at which a frame is due, so
a late write by the owner makes the frame late. All CPU time of the process, including the owner's and garbage
collection, is divided by the frames answered.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.host import HostBackend
from antiphon.backends.null import NullRows
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.loop import Wake, least_tick_s
from antiphon.engine.metrics import EngineMetrics
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind
from tests.engine.bench import Calls
from tests.support.bulk_owner import BulkOwner

SPEC = ModelSpec(
    name="nothing",
    kind=PipelineKind.CODEC,
    family="none",
    mimi=MimiSpec(sample_rate=24_000, frame_rate=12.5, codebooks=8, cardinality=2048),
)
FRAME_S = SPEC.frame_ms / 1000.0
LONGEST_TURN = 1.5
"""Number of minimum tick times after which the owner looks without a tick."""
SETTLE_S = 6.0
"""Seconds before counting: every ring is written once, so that its memory is allocated."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost with one number of sessions, and the latency of a frame: from its due time until its reply is
    taken."""

    sessions: int
    us_per_frame: float
    cpu_share_of_one_core: float
    frames: int
    frames_due: int
    rows_per_tick: float
    latency_ms_p50: float
    latency_ms_p99: float
    late: int


class Owner:
    """The thread that owns the sessions: it writes frames and reads replies at the random phase of each
    session."""

    def __init__(self, engine: Engine, sessions: int, bell: Wake, turn_s: float | None) -> None:
        """Own this number of sessions, which begin to send at once."""
        self._turn_s, self._bell = turn_s, bell
        least_s = least_tick_s(engine.config.least_tick_ms / 1000.0, sessions)
        self._longest_s = LONGEST_TURN * least_s
        calls = Calls(engine)
        opened = [calls.submit() for _ in range(sessions)]
        self._bulk = BulkOwner(engine, opened)
        phases = np.sort(np.random.default_rng(0).random(sessions))
        self._due_s = time.monotonic() + phases * FRAME_S
        self._pcm = np.zeros((sessions, SPEC.frame_samples), np.float32)
        self.latencies_s: list[np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = []

    def run(self, seconds: float) -> None:
        """Write due frames and take replies for ``seconds``."""
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            due = (self._due_s <= now_s).nonzero()[0]
            if due.size:
                self._bulk.push(due, self._pcm[: due.size], self._due_s[due])
                self._due_s[due] += FRAME_S
            if self._turn_s is None:
                self._bell.wait(self._longest_s)
            else:
                time.sleep(max(0.0, now_s + self._turn_s - time.monotonic()))
            self._take()

    def _take(self) -> None:
        while (taken := self._bulk.take()).place.size:
            sent_s = time.monotonic()
            self._bulk.sent(taken, sent_s)
            self.latencies_s.append(sent_s - taken.replies.times[:, 2])

    @property
    def late(self) -> int:
        """The number of frames whose latency was longer than a frame."""
        return int(self._bulk.late.sum())


def measure(sessions: int, seconds: float, turn_s: float | None) -> Cost:
    """Run an engine with ``sessions`` sessions for ``seconds``, and return their cost."""
    bell = Wake()
    backend = HostBackend(SPEC, NullRows(SPEC, sleep=lambda _: None), slots=sessions)
    metrics = EngineMetrics(CollectorRegistry(), model="nothing")
    engine = Engine(backend, EngineConfig(slots=sessions), metrics=metrics, on_tick=bell.nudge)
    engine.start()
    owner = Owner(engine, sessions, bell, turn_s)
    owner.run(SETTLE_S)
    owner.latencies_s.clear()
    late, ticks, before_s = owner.late, _ticks(metrics), _cpu_s()
    owner.run(seconds)
    cpu_s, ticks = _cpu_s() - before_s, _ticks(metrics) - ticks
    engine.stop(5.0)
    latencies_ms = 1000 * np.concatenate(owner.latencies_s)
    return Cost(
        sessions=sessions,
        us_per_frame=1e6 * cpu_s / latencies_ms.size,
        cpu_share_of_one_core=cpu_s / seconds,
        frames=latencies_ms.size,
        frames_due=round(sessions * seconds / FRAME_S),
        rows_per_tick=latencies_ms.size / ticks,
        latency_ms_p50=float(np.percentile(latencies_ms, 50)),
        latency_ms_p99=float(np.percentile(latencies_ms, 99)),
        late=owner.late - late,
    )


def _ticks(metrics: EngineMetrics) -> float:
    return metrics.registry.get_sample_value("antiphon_tick_seconds_count", {"model": "nothing"}) or 0.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, action="append", help="may be repeated")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turn-ms", type=float, help="instead of once a tick")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    turn_s = None if options.turn_ms is None else options.turn_ms / 1000
    costs = [measure(count, options.seconds, turn_s) for count in options.sessions or (32, 128, 512, 2048)]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    print("sessions  us/frame  one core  frames (due)      rows/tick  p50 ms  p99 ms  late")
    for cost in costs:
        print(
            f"{cost.sessions:8}  {cost.us_per_frame:8.1f}  {cost.cpu_share_of_one_core:8.1%}  "
            f"{cost.frames:7} ({cost.frames_due:7})  {cost.rows_per_tick:9.1f}  "
            f"{cost.latency_ms_p50:6.1f}  {cost.latency_ms_p99:6.1f}  {cost.late:4}"
        )


if __name__ == "__main__":
    main()

"""What the engine itself costs a session-frame: push, gather, scatter, take, sent; the model costs nothing.

``python -m bench.engine_overhead --sessions 300`` first ticks by hand, on one thread, with all sessions
in every tick, and times each stage; then runs the engine thread against one thread that pushes at real
time (12.5 frames a second and session, random phases, in pieces of 20 ms) and takes when it is told, and
reports the share of one core both need. Prints one JSON object with ``--json``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import (
    BackendInfo,
    HostArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.replies import FrameReply
from antiphon.engine.session import Session
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import MimiSpec, ModelSpec, PipelineKind

SPEC = ModelSpec(
    name="nothing",
    kind=PipelineKind.CODEC,
    family="none",
    mimi=MimiSpec(sample_rate=24_000, frame_rate=12.5, codebooks=8, cardinality=2048),
)
FRAME = SPEC.frame_samples
FRAME_S = SPEC.frame_ms / 1000.0
PIECES = 4


class Nothing:
    """A backend that hands its input back, and whose rows remember nothing.

    Cheaper than the null backend, whose stamps cost more than the engine that is measured here.
    """

    def __init__(self, slots: int) -> None:
        self.info = BackendInfo("nothing", "cpu", SPEC, slots)

    def warm_up(self, progress: Progress) -> None:
        pass

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        pass

    def step(self, inputs: StepInputs) -> StepOutputs:
        every = np.ones(inputs.count, np.bool_)
        return StepOutputs(consumed=every, emitted=every, pcm=inputs.pcm)

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        return self.info.slots if is_fixed else int(rows.size)

    def snapshot(self, row: int) -> RowSnapshot:
        raise NotImplementedError

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        raise NotImplementedError

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        raise NotImplementedError

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        raise NotImplementedError

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        raise NotImplementedError

    def state_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def make_engine(slots: int) -> Engine:
    metrics = EngineMetrics(CollectorRegistry(), model="nothing")
    return Engine(Nothing(slots), EngineConfig(), metrics=metrics)


def nobody() -> None:
    """Be told, and do nothing."""


def by_hand(sessions: int, ticks: int) -> dict[str, float]:
    """Microseconds a session-frame of each stage, all sessions in every tick, on one thread."""
    engine = make_engine(sessions)
    engine.prepare()
    callers = [engine.submit(SamplingParameters(), wait_s=0, notify=nobody) for _ in range(sessions)]
    pcm = np.zeros(FRAME, np.float32)
    spent = dict.fromkeys(("push", "tick", "take", "sent"), 0.0)

    def timed(stage: str, work: Callable[[], None]) -> None:
        start_s = time.perf_counter()
        work()
        spent[stage] += time.perf_counter() - start_s

    def push() -> None:
        now_s = engine.clock()
        for caller in callers:
            caller.push(pcm, now_s)

    def take() -> None:
        replies.extend((caller, caller.take()[0]) for caller in callers)

    def sent() -> None:
        now_s = engine.clock()
        for caller, reply in replies:
            caller.sent(reply, now_s)

    def tick() -> None:
        engine.loop.tick_once()

    for _ in range(ticks):
        replies: list[tuple[Session, FrameReply]] = []
        for stage, work in (("push", push), ("tick", tick), ("take", take), ("sent", sent)):
            timed(stage, work)
    per_frame = {stage: 1e6 * seconds / (ticks * sessions) for stage, seconds in spent.items()}
    return {**per_frame, "total": sum(per_frame.values())}


def in_threads(sessions: int, seconds: float) -> dict[str, float]:
    """The engine thread and one thread of callers at real time: CPU share, rows a tick, latency."""
    engine = make_engine(sessions)
    engine.start()
    told: deque[Session] = deque()
    is_told = threading.Event()

    def teller(index: int) -> Callable[[], None]:
        def tell() -> None:
            told.append(callers[index])
            is_told.set()

        return tell

    callers = [
        engine.submit(SamplingParameters(), wait_s=0, notify=teller(index)) for index in range(sessions)
    ]
    phases = random.Random(0)
    start_s = time.monotonic() + 0.1
    due = [(start_s + phases.random() * FRAME_S, index) for index in range(sessions)]
    heapq.heapify(due)
    piece = np.zeros(FRAME // PIECES, np.float32)
    latencies: list[float] = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    while (now_s := time.monotonic()) < start_s + seconds:
        while due[0][0] <= now_s:
            due_s, index = due[0]
            callers[index].push(piece, now_s)
            heapq.heapreplace(due, (due_s + FRAME_S / PIECES, index))
        while told:
            caller = told.popleft()
            for reply in caller.take():
                sent_s = time.monotonic()
                caller.sent(reply, sent_s)
                latencies.append(sent_s - reply.complete_s)
        is_told.clear()
        if not told:
            is_told.wait(max(0.0, due[0][0] - time.monotonic()))
    after = resource.getrusage(resource.RUSAGE_SELF)
    lost = sum(caller.stats().lost for caller in callers)
    engine.stop(5.0)
    registry = engine.metrics.registry
    ticks = registry.get_sample_value("antiphon_tick_seconds_count", {"model": "nothing"}) or 1.0
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ordered = sorted(latencies)
    return {
        "cpu_share_of_one_core": cpu_s / seconds,
        "us_per_frame": 1e6 * cpu_s / len(latencies),
        "frames": len(latencies),
        "frames_expected": sessions * seconds / FRAME_S,
        "rows_per_tick": len(latencies) / ticks,
        "latency_ms_p50": 1e3 * ordered[len(ordered) // 2],
        "latency_ms_p99": 1e3 * ordered[int(0.99 * len(ordered))],
        "lost": lost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = {
        "sessions": options.sessions,
        "by_hand_us_per_frame": by_hand(options.sessions, options.ticks),
        "in_threads": in_threads(options.sessions, options.seconds),
    }
    if options.json:
        print(json.dumps(report))
        return
    print(f"{options.sessions} sessions; microseconds a session-frame, by hand on one thread:")
    for stage, value in report["by_hand_us_per_frame"].items():
        print(f"  {stage:24} {value:8.2f}")
    print(f"engine thread and one caller thread, {options.seconds:g} s at real time, 20 ms pieces:")
    for name, value in report["in_threads"].items():
        print(f"  {name:24} {value:8.2f}")


if __name__ == "__main__":
    main()

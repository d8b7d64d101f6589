"""Measures the cost of a recogniser's row in the engine's process while PCM arrives through shared memory.

The engine is in this process, on a backend that sleeps; generator processes have a pool of leases each, write
a frame every 80 ms at random phases, and read the replies.

``python -m lab.bench.front_end_rings DESCRIPTOR JSON`` is one generator.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import (
    BackendInfo,
    HostArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.ipc.engine_client import connect
from antiphon.ipc.session import Session
from antiphon.models.catalog import load_checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from lab.bench.harness import BenchError, Values
from tests.ipc.server_thread import ServerThread

FRAME_S: Final = 0.08
STEP_S: Final = 0.03
MODEL: Final = "tiny-stt"
CLOSE_S: Final = 0.5
"""Seconds for the engine to read that calls are over, before their process ends."""


class NullRecogniser:
    """A recogniser backend without a model: a step sleeps, and every row outputs its next token."""

    def __init__(self, slots: int, step_s: float) -> None:
        """``slots`` rows of the shapes of :data:`MODEL`."""
        spec = load_checkpoint(MODEL).spec
        self.info = BackendInfo(name="null", device="cpu", spec=spec, slots=slots, dtype="float32")
        self._step_s, self._tokens = step_s, np.zeros(slots, np.int32)
        self._heads = 0 if spec.lm is None else spec.lm.extra_heads

    def warm_up(self, progress: Progress) -> None:
        """No effect."""

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """No effect."""

    def plan(self, rows: Any, *, is_fixed: bool = False) -> int:
        """Return the number of rows that a step computes: those of ``rows``, or with ``is_fixed`` all
        rows."""
        return self.info.slots if is_fixed else int(rows.size)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Sleep, then return an output of every row."""
        time.sleep(self._step_s)
        self._tokens[inputs.rows] += 1
        all_of_them = np.ones(inputs.count, np.bool_)
        vad = np.zeros((inputs.count, self._heads), np.float32)
        return StepOutputs(all_of_them, all_of_them, text_tokens=self._tokens[inputs.rows], vad=vad)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Raise NotImplementedError: this backend has no prompts."""
        raise NotImplementedError

    def snapshot(self, row: int) -> RowSnapshot:
        """Return the state of a row: its counter."""
        return RowSnapshot("null", {"token": self._tokens[row : row + 1].copy()}, 4)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Set the counter of a row from ``snapshot``."""
        self._tokens[row] = snapshot.tensors["token"][0]

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        """Return the counter in host memory, where it is already."""
        return dict(snapshot.tensors)

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        """Return the snapshot that has ``arrays``."""
        return RowSnapshot("null", dict(arrays), 4)

    def state_bytes(self) -> int:
        """Return the bytes of the counters of all rows."""
        return self._tokens.nbytes

    def close(self) -> None:
        """No effect."""


def measure_rings(rows: int, generators: int, *, seconds: float, step_s: float = STEP_S) -> Values:
    """Measure p50 and p99 of the time from a whole frame to its reply, and the CPU time per row and frame of
    this process."""
    engine = Engine(
        NullRecogniser(rows, step_s),
        EngineConfig(slots=rows),
        metrics=EngineMetrics(CollectorRegistry(), model=MODEL),
        pools=generators,
        wake=EventWake(),
    )
    engine.start()
    fleet = ServerThread({MODEL: engine})
    try:
        running = [_start(fleet, pool, -(-rows // generators), seconds) for pool in range(generators)]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()  # all its calls are open
        begun_s, begun_cpu_s = time.monotonic(), _own_cpu_s()
        for process in running:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        time.sleep(seconds)
        cpu_s, elapsed_s = _own_cpu_s() - begun_cpu_s, time.monotonic() - begun_s
        found = [json.loads(process.communicate()[0]) for process in running]
    finally:
        engine.stop(5.0)
        fleet.stop()
    latency_ms = np.concatenate([each["latency_ms"] for each in found])
    if not latency_ms.size:
        raise BenchError("no row was answered")
    frames = int(latency_ms.size)
    return {
        "rows": rows,
        "frames": frames,
        "frames_per_s": frames / seconds,
        "p50_ms": float(np.quantile(latency_ms, 0.5)),
        "p99_ms": float(np.quantile(latency_ms, 0.99)),
        "engine_cpu_share": cpu_s / elapsed_s,
        "host_us_per_row_frame": 1e6 * cpu_s / frames,
        "dropped": sum(each["refused"] for each in found),
        "unanswered": sum(each["sent"] for each in found) - frames,
        "generator_cpu_share": [each["cpu_s"] / seconds for each in found],
        "generator_late_ms": max(each["late_ms"] for each in found),
    }


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _start(fleet: ServerThread, pool: int, calls: int, seconds: float) -> subprocess.Popen[bytes]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    facts = json.dumps({"calls": calls, "seconds": seconds, "seed": pool})
    command = [sys.executable, "-m", "lab.bench.front_end_rings", str(theirs.fileno()), facts]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    fleet.add(pool, ours)
    return process


class Generator:
    """The calls of one generator process; frames are due at random phases and written in the order of their
    due times."""

    def __init__(self, sessions: list[Session], frame_samples: int) -> None:
        self._sessions = sessions
        self._frame = np.zeros(frame_samples, np.float32)
        self._phases = sorted(random.uniform(0, FRAME_S) for _ in sessions)
        self.latency_ms: list[float] = []
        self.sent = self.refused = 0
        self.late_ms = 0.0

    async def run(self, seconds: float) -> None:
        """Write frames and read replies for ``seconds``."""
        start_s = time.monotonic()
        for number in range(round(seconds / FRAME_S)):
            for phase_s, session in zip(self._phases, self._sessions, strict=True):
                due_s = start_s + number * FRAME_S + phase_s
                if (wait_s := due_s - time.monotonic()) > 0.001:
                    await asyncio.sleep(wait_s)
                now_s = time.monotonic()
                self.late_ms = max(self.late_ms, 1000 * (now_s - due_s))
                self._read(session)
                if session.room_samples < self._frame.size:
                    self.refused += 1
                    continue
                session.push(self._frame, now_s)
                self.sent += 1
        await asyncio.sleep(3 * FRAME_S)
        for session in self._sessions:
            self._read(session)

    def _read(self, session: Session) -> None:
        for reply in session.take():
            self.latency_ms.append(round(1000 * (reply.replied_s - reply.complete_s), 2))


async def generate(control: socket.socket, facts: Mapping[str, Any]) -> None:
    """Run one generator process."""
    random.seed(facts["seed"])
    port = (await connect(control))[MODEL]
    sessions = [
        await port.submit(SamplingParameters(), wait_s=0.0, notify=lambda: None)
        for _ in range(facts["calls"])
    ]
    sys.stdout.write("open\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    generator, begun_s = Generator(sessions, port.info.spec.frame_samples), time.process_time()
    await generator.run(facts["seconds"])
    values = {
        "latency_ms": generator.latency_ms,
        "sent": generator.sent,
        "refused": generator.refused,
        "late_ms": generator.late_ms,
        "cpu_s": time.process_time() - begun_s,
    }
    for session in sessions:
        session.close()
    await asyncio.sleep(CLOSE_S)
    sys.stdout.write(json.dumps(values))


if __name__ == "__main__":
    asyncio.run(generate(socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])))

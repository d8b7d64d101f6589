"""Readers of a call that another worker hands over: its bytes, and the content of its lease."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.engine.call_state import (
    FACTS,
    METADATA,
    CallFacts,
    CallState,
    StateIdentity,
    check_row_values,
    unpack_call,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.handover import HandOverPlan
from antiphon.errors import HandOverError, UnsupportedError
from antiphon.ipc.rings import CallerCounts, EngineCounts
from antiphon.ipc.values import IN_MARKS, OUT_MARKS, RECENT_TICKS, RING_BOUNDS, ResumeClaim, SessionState
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from lab.tools.fuzz.target import Target, require
from tests.engine.bench import Bench, frames
from tests.engine.fakes import FRAME, FakeBackend, fake_spec

IDENTITY: Final = StateIdentity("a1", "fake", "float32", "none")
SPEC: Final = fake_spec(PipelineKind.DUPLEX)
KINDS: Final = (PipelineKind.CODEC, PipelineKind.DUPLEX)
FRAMES: Final = 4
"""Frames of input, and of output, that may wait in a lease."""

KEY_BYTES: Final = 32
SETTLED_TICKS: Final = 16
NAMES: Final = ("caller", "engine", "recent_ms", "in_marks", "in_pcm", "out_marks", "out_pcm", "out_vad")


def packed(data: bytes) -> bytes:
    """Return the bytes of a call: its facts, its arrays' descriptions and their bytes, with zero bytes
    between.

    Data that begins with 0xFF is passed on unchanged.
    """
    if data[:1] == b"\xff":
        return data[1:]
    facts, arrays, body, *_ = (*data.split(b"\0", 2), b"", b"")
    metadata = {name: str(value) for name, value in asdict(IDENTITY).items()}
    metadata[FACTS] = facts.decode("utf-8", "replace")
    header = json.dumps({METADATA: metadata}).encode()[:-1] + arrays + b"}"
    return len(header).to_bytes(8, "little") + header + body


def read_call(data: bytes) -> None:
    """Read a call, write it, and require the same call when it is read again."""
    state = unpack_call(packed(data), IDENTITY)
    check_row_values(state.row, SPEC)
    require(unpack_call(state.pack(IDENTITY), IDENTITY).facts == state.facts, "a call is not read back")


def lease_of(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the content of a lease: three bytes are the frames received and sent, and a flaw; the remaining
    bytes are its numbers.

    The numbers are repeated to fill it.
    """
    heard, said, flaw = (*data[:3], 0, 0, 0)[:3]
    heard, said = (count % (RING_BOUNDS * FRAMES + 2) for count in (heard, said))
    shapes = ((CallerCounts.ROWS,), (EngineCounts.ROWS,), (heard, IN_MARKS), (said, OUT_MARKS))
    sizes = [int(np.prod(shape)) for shape in shapes]
    given = np.frombuffer(data[3:].ljust(8, b"\0")[: len(data[3:].ljust(8, b"\0")) // 8 * 8], np.int64)
    numbers = np.split(np.resize(given, sum(sizes)), np.cumsum(sizes)[:-1])
    caller, engine, in_marks, out_marks = (
        part.reshape(shape) for part, shape in zip(numbers, shapes, strict=True)
    )
    sample = np.frombuffer(data[-4:].ljust(4, b"\0"), np.float32)[0]
    found: dict[str, NDArray[Any]] = {
        "caller": caller,
        "engine": engine,
        "recent_ms": np.full((RECENT_TICKS, 2), sample, np.float32),
        "in_marks": in_marks,
        "in_pcm": np.full((heard, FRAME), sample, np.float32),
        "out_marks": out_marks,
        "out_pcm": np.full((said, FRAME), sample, np.float32),
        "out_vad": np.zeros((said, 0), np.float32),
    }
    return _flawed(found, flaw)


def _flawed(found: dict[str, NDArray[Any]], flaw: int) -> dict[str, NDArray[Any]]:
    """Without an array, or with one of another type or shape; most flaws are none."""
    name, kind = NAMES[flaw % len(NAMES)], flaw // len(NAMES)
    if kind == 1:
        del found[name]
    elif kind == 2:
        found[name] = found[name].astype(np.float64)
    elif kind == 3:
        found[name] = found[name][..., :-1]
    elif kind == 4:
        found[name] = found[name].reshape(-1)
    return found


class Arrivals:
    """An engine that accepts one call after the other; its ticks are run directly."""

    def __init__(self, kind: PipelineKind) -> None:
        """Start without calls."""
        self._numbers = itertools.count()
        self._bench = Bench(
            FakeBackend(fake_spec(kind), slots=2),
            config=EngineConfig(input_frames=FRAMES, output_frames=FRAMES),
            hand_over=lambda _: HandOverPlan("here", IDENTITY, _refuse, 1.0),
        )

    def take(self, lease: Mapping[str, NDArray[Any]], frame: int) -> None:
        """Accept a call, resume it after ``frame``, talk and end it; then require that the engine has a free
        row."""
        key, next_key = (next(self._numbers).to_bytes(KEY_BYTES, "little") for _ in range(2))
        facts = CallFacts("a call", "", SamplingParameters(), False, (key,), (), 0, 0, 0, 0, 0)
        state = CallState(facts, {"row": np.array([1.0, 2.0, 0.0, 3.0])}, lease)
        try:
            self._arrive(state.pack(IDENTITY))
            self._go_on(ResumeClaim(key, next_key, "", -1, frame, replay_frames=2))
        finally:
            self._settle()
            self._bench.backend.steps.clear()
            engine = self._bench.engine
            require(not engine.loop.is_lost, "the engine has ended")
            require(engine.health().active == 0, "a call is left behind")

    def _arrive(self, data: bytes) -> None:
        arrived: Future[None] = Future()
        handing_over = self._bench.engine.handover
        assert handing_over is not None
        handing_over.read(lambda: data, arrived)  # here, instead of on its thread
        self._settle()
        require(arrived.done(), "a call neither arrives nor is refused")
        arrived.result()

    def _go_on(self, claim: ResumeClaim) -> None:
        session = self._bench.calls.resume(claim)
        self._settle()
        require(session.state is SessionState.ACTIVE, f"the call is {session.state}: {session.error}")
        for value in (1.0, 2.0, 3.0):
            session.push(frames(value), self._bench.clock())
            self._settle()
            session.take()
        require(session.stats().reply_frames == 0, "replies that cannot be taken")
        session.close()

    def _settle(self) -> None:
        for _ in range(SETTLED_TICKS):
            if not self._bench.tick():
                break
        self._bench.clock.advance(0.08)


def _refuse(_target: str, _data: bytes) -> str:
    raise HandOverError("no call leaves")


class Leases:
    """An engine for moved calls of each pipeline, made on first use since an import does no work."""

    def __init__(self) -> None:
        """Start without any."""
        self._arrivals: list[Arrivals] = []

    def read(self, data: bytes) -> None:
        """Read the content of a lease from another worker; the first byte chooses the pipeline and the frame
        after which the call resumes."""
        if not self._arrivals:
            self._arrivals += [Arrivals(kind) for kind in KINDS]
        first = data[0] if data else 0
        try:
            self._arrivals[first % len(KINDS)].take(lease_of(data[1:]), first // len(KINDS) - 1)
        except HandOverError as error:
            require("could not be taken" not in str(error), str(error))
            raise


TARGETS = {
    "call": Target(read_call, (UnsupportedError,), max_bytes=2048),
    "lease": Target(Leases().read, (UnsupportedError, HandOverError)),
}

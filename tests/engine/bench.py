"""An engine on fakes, ticked by hand, with the input and output of its sessions."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import (
    BackendInfo,
    FloatArray,
    TextEntry,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.front_ends import LocalFrontEnd
from antiphon.engine.handover import HandOverPlan
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.sessions import EngineSession
from antiphon.engine.trace import Tracer
from antiphon.errors import AntiphonError
from antiphon.ipc.session import Session
from antiphon.ipc.values import FrameReply, ResumeClaim
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.fakes import FRAME, MODEL, FakeBackend, FakeClock, fake_spec


class NowLoop:
    """In place of an event loop: what its own thread wants called is called at once.

    What other threads want waits for :meth:`run`.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._turns: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def run(self) -> None:
        """Do what other threads want."""
        while not self._turns.empty():
            self._turns.get()()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast("asyncio.AbstractEventLoop", self))

    def call_soon(self, callback: Callable[..., object], *args: object, **_: object) -> None:
        callback(*args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        if threading.get_ident() == self._thread:
            callback(*args)
        else:
            self._turns.put(partial(callback, *args))

    def call_later(self, _delay_s: float, callback: Callable[..., object], *args: object) -> None:
        self.call_soon(callback, *args)

    def call_exception_handler(self, _context: dict[str, Any]) -> None:
        """An answer that nobody looked at: the session has the same error."""

    def get_debug(self) -> bool:
        return False


class ThreadLoop(NowLoop):
    """In place of the event loop of one thread, which runs it beside a started engine."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        self._turns.put(partial(callback, *args))

    def turn(self, timeout_s: float) -> None:
        """Do what was asked for, or wait for it."""
        with contextlib.suppress(queue.Empty):
            self._turns.get(timeout=timeout_s)()


class Calls:
    """A front end of this process on one thread, beside an engine that is ticked by hand or has started."""

    def __init__(self, engine: Engine, *, is_started: bool = False) -> None:
        self.loop = ThreadLoop() if is_started else NowLoop()
        self._front_end = LocalFrontEnd({MODEL: engine}, cast("asyncio.AbstractEventLoop", self.loop))
        self.port = self._front_end.client.engines[MODEL]
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()

    def until(self, is_so: Callable[[], object], limit_s: float = 120.0) -> None:
        """Do what a started engine asks for until something holds."""
        end_s = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end_s, f"nothing came of it for {limit_s} s"
            self.turn(0.02)

    def turn(self, timeout_s: float = 0.0) -> None:
        """Do what a started engine has asked for, or wait for it."""
        assert isinstance(self.loop, ThreadLoop)
        self.loop.turn(timeout_s)

    def submit(
        self,
        parameters: SamplingParameters | None = None,
        *,
        wait_s: float = 0.0,
        notify: Callable[[], None] | None = None,
        prompt: Prompt | None = None,
    ) -> Session:
        """A session that was admitted, or waits; ``notify`` is called of what comes after that."""
        is_open = False

        def tell() -> None:
            if is_open and notify is not None:
                notify()

        session, answer = self.port.open(
            parameters or SamplingParameters(), wait_s=wait_s, notify=tell, prompt=prompt
        )
        answer.result()
        self._sessions.add(session)
        is_open = True
        if session.error is not None:
            raise session.error
        return session

    def resume(self, claim: ResumeClaim) -> Session:
        """Soon ACTIVE; what refuses it at once is raised."""
        session, answer = self.port.open_resumed(claim, notify=None)
        self._sessions.add(session)
        if answer.done():
            answer.result()
        return session

    def hang_up(self) -> None:
        """Close every session that is open."""
        for session in tuple(self._sessions):
            session.close()

    def engine_session(self, session: Session) -> EngineSession:
        """The engine's half."""
        return self._front_end.connection.calls[session.id][1]


class Bench:
    """An engine on fakes, ticked by hand."""

    def __init__(
        self,
        backend: FakeBackend | None = None,
        *,
        config: EngineConfig | None = None,
        clock: FakeClock | None = None,
        tracer: Tracer | None = None,
        hand_over: Callable[[BackendInfo], HandOverPlan] | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.backend = backend or FakeBackend()
        self.registry = CollectorRegistry()
        self.losses: list[AntiphonError] = []
        self.engine = Engine(
            self.backend,
            config or EngineConfig(),
            clock=self.clock,
            metrics=EngineMetrics(self.registry, model=MODEL),
            on_lost=lambda error: self.losses.append(error),
            tracer=tracer,
            hand_over=hand_over,
        )
        self.engine.prepare()
        self.calls = Calls(self.engine)

    def tick(self) -> bool:
        """What other threads want, and a tick."""
        self.calls.loop.run()
        return self.engine.loop.tick_once()

    def submit(
        self,
        *,
        wait_s: float = 0.0,
        seed: int = 0,
        notify: Callable[[], None] = lambda: None,
        prompt: Prompt | None = None,
    ) -> Session:
        parameters = SamplingParameters(text_seed=seed)
        return self.calls.submit(parameters, wait_s=wait_s, notify=notify, prompt=prompt)

    def push(self, session: Session, *values: float) -> None:
        """Push whole frames, each filled with one value."""
        session.push(frames(*values), self.clock())

    def ticks(self) -> int:
        """Tick until nothing is ready; returns how many ticks there were."""
        count = 0
        while self.tick():
            count += 1
        return count

    def read(self, name: str, **labels: str) -> float:
        """A sample of the metrics, ``antiphon_`` left out."""
        value = self.registry.get_sample_value(f"antiphon_{name}", {"model": MODEL, **labels})
        assert value is not None, name
        return value


def bench_of(kind: PipelineKind, *, input_frames: int = 8, output_frames: int = 25) -> Bench:
    config = EngineConfig(input_frames=input_frames, output_frames=output_frames)
    return Bench(FakeBackend(fake_spec(kind), 4), config=config)


def frames(*values: float) -> FloatArray:
    return np.repeat(np.asarray(values, np.float32), FRAME)


def words(*tokens: int, frames_each: int = 1) -> list[TextEntry]:
    return [TextEntry((token,), padding_frames=frames_each - 1) for token in tokens]


def heard(replies: Sequence[FrameReply]) -> list[float]:
    """The input value that each reply echoes."""
    return [float(pcm_of(reply)[0]) for reply in replies]


def pcm_of(reply: FrameReply) -> FloatArray:
    assert reply.pcm is not None
    return reply.pcm

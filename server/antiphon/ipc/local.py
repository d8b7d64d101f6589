"""The engine of this process as a port: direct calls, and one wake-up of the event loop for many changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from antiphon.ipc.health import Health
from antiphon.ipc.port import CallSession, ModelFacts, Notify
from antiphon.ipc.resumption import ResumeClaim
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

Failed: TypeAlias = Callable[[Exception], None]


class DirectEngine(Protocol):
    """The synchronous engine: what a port asks of it, with a ``notify`` that any thread may call."""

    @property
    def info(self) -> ModelFacts:
        """See :class:`antiphon.ipc.port.EnginePort`, here and below."""
        ...

    def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Callable[[], None] | None,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """A new session."""
        ...

    def resume(self, claim: ResumeClaim, *, notify: Callable[[], None]) -> CallSession:
        """A session that goes on with a call of another connection."""
        ...

    def check_room(self, wait_s: float) -> None:
        """Whether there would be one."""
        ...

    def health(self) -> Health:
        """How the engine is."""
        ...

    def drain(self, target: str = "") -> None:
        """Admit no further caller."""
        ...

    @property
    def call_bytes(self) -> int:
        """The most that a call has as bytes."""
        ...

    def take_call(self, read: Callable[[], bytes]) -> Future[None]:
        """Take a call of another worker."""
        ...

    def note_host(self, host: str, lag_s: float) -> None:
        """Tell admission how late an event loop runs."""
        ...


class Doorbell:
    """Calls on an event loop's thread, asked for from any thread: one wake-up a turn, however many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call on the thread of ``loop``."""
        self._loop = loop
        self._waiting: dict[Notify, Failed] = {}
        self._lock = threading.Lock()

    def ring(self, notify: Notify, failed: Failed) -> None:
        """Call ``notify`` soon, ``failed`` with what it raises; again before that changes nothing."""
        with self._lock:
            is_called = bool(self._waiting)
            self._waiting[notify] = failed
        if is_called:
            return
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # the loop was closed: the process is leaving
            self._waiting.clear()

    def _answer(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for notify, failed in waiting.items():
            try:
                notify()
            except Exception as error:  # a boundary: the wake-ups of other sessions follow
                failed(error)


class LocalEngine:
    """:class:`antiphon.ipc.port.EnginePort` in one process."""

    def __init__(self, engine: DirectEngine, doorbell: Doorbell | None = None) -> None:
        """Stand for a started ``engine``; without a ``doorbell`` it has its own, on the loop that submits."""
        self._engine, self._doorbell = engine, doorbell

    @property
    def info(self) -> ModelFacts:
        """What does not change."""
        return self._engine.info

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """A new session; see :meth:`antiphon.ipc.port.EnginePort.submit`."""
        ring = self._bell().ring
        session = self._engine.submit(
            parameters,
            wait_s=wait_s,
            notify=lambda: ring(notify, lambda error: session.notify_failed(error)),
            prompt=prompt,
        )
        return session

    def _bell(self) -> Doorbell:
        if self._doorbell is None:
            self._doorbell = Doorbell(asyncio.get_running_loop())
        return self._doorbell

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> CallSession:
        """Go on with a call of another connection; see :meth:`antiphon.ipc.port.EnginePort.resume`."""
        changed = asyncio.Event()

        def tell() -> None:
            changed.set()
            notify()

        ring = self._bell().ring
        session = self._engine.resume(
            claim, notify=lambda: ring(tell, lambda error: session.notify_failed(error))
        )
        try:
            while session.state is SessionState.QUEUED:
                changed.clear()
                await changed.wait()
        except asyncio.CancelledError:
            session.close()
            raise
        if session.error is not None:
            raise session.error
        return session

    async def check_room(self, wait_s: float) -> None:
        """Whether :meth:`submit` would take a caller now."""
        self._engine.check_room(wait_s)

    def health(self) -> Health:
        """How the engine is."""
        return self._engine.health()

    def drain(self, target: str = "") -> None:
        """Close admission."""
        self._engine.drain(target)

    @property
    def call_bytes(self) -> int:
        """The most that a call has as bytes."""
        return self._engine.call_bytes

    async def take_call(self, data: bytes) -> None:
        """Take a call of another worker; see :meth:`antiphon.ipc.port.EnginePort.take_call`."""
        await asyncio.wrap_future(self._engine.take_call(lambda: data))

    def note_lag(self, lag_s: float) -> None:
        """Tell admission how late the event loop runs."""
        self._engine.note_host("loop", lag_s)

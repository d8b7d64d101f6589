"""A front end's view of one model's engines. There is one engine per device, and each call runs on one of
them.

It belongs to the thread of the event loop. A group of one engine behaves like that engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from antiphon.errors import (
    AntiphonError,
    DrainingError,
    MovedError,
    ResumeError,
    ServerFullError,
    SessionFailedError,
)
from antiphon.ipc.engine_client import CallSession, EnginePort, ModelFacts, Notify
from antiphon.ipc.health import Health, as_one
from antiphon.ipc.values import ResumeClaim
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

NOT_NOW = (ServerFullError, DrainingError, SessionFailedError)
"""Errors after which another engine may accept the call."""

HUNG_S: Final = 1.0
"""Seconds for a hanging engine to report whether it has a call, before the supervisor ends it."""


class EngineGroup:
    """Passes each call to the engine with the fewest calls among the engines that admit it."""

    def __init__(self, ports: Sequence[EnginePort]) -> None:
        """Group these engines of one model, at least one."""
        self._ports = tuple(ports)
        self.info: ModelFacts = replace(ports[0].info, slots=sum(port.info.slots for port in ports))
        self.call_bytes = max(port.call_bytes for port in ports)
        self._given = dict.fromkeys(self._ports, 0)  # calls since the engine last reported how many it has
        self._unanswered = dict.fromkeys(self._ports, 0)  # of these; a report may not count them yet
        for port in self._ports:
            port.on_change(partial(self._note_report, port))

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """Open a session as :meth:`EnginePort.submit`; a call that no engine admits waits in the shortest
        queue.
        """
        for port in self._ready() if len(self._ports) > 1 else ():
            self._given[port] += 1
            self._unanswered[port] += 1
            try:
                return await port.submit(parameters, wait_s=0.0, notify=notify, prompt=prompt)
            except NOT_NOW:  # other callers have arrived earlier
                continue
            finally:
                self._unanswered[port] -= 1
        port = self._waiting()
        self._given[port] += 1
        return await port.submit(parameters, wait_s=wait_s, notify=notify, prompt=prompt)

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> CallSession:
        """Open a session that continues a call, as :meth:`EnginePort.resume`. The call may be at any engine,
        and may have moved to another one.

        An engine that hangs is asked last, with a short limit.
        """
        failure: AntiphonError | None = None
        for port in sorted(self._by_calls(self._ports), key=lambda port: not port.health().is_healthy):
            is_patient = port.health().is_healthy or len(self._ports) == 1
            try:
                async with asyncio.timeout(None if is_patient else HUNG_S):
                    return await port.resume(claim, notify=notify)
            except TimeoutError:
                words = f"the engine {port.info.device} has not answered for {HUNG_S:g} s"
                failure = failure if isinstance(failure, MovedError) else SessionFailedError(words)
            except (ResumeError, MovedError, SessionFailedError) as error:
                if isinstance(error, ResumeError) and error.reason != "unknown":
                    raise
                failure = failure if isinstance(failure, MovedError) else error
        assert failure is not None
        raise failure

    async def check_room(self, wait_s: float) -> None:
        """Check that :meth:`submit` would now accept a caller that waits ``wait_s``; raises the same
        errors."""
        for port in self._ready() if len(self._ports) > 1 else ():
            try:
                await port.check_room(0.0)
            except NOT_NOW:
                continue
            return
        await self._waiting().check_room(wait_s)

    async def take_call(self, data: bytes) -> None:
        """Accept a call from another worker at one of the engines, as :meth:`EnginePort.take_call`."""
        *firsts, last = self._ready() or [self._waiting()]
        for port in firsts:
            try:
                await port.take_call(data)
            except NOT_NOW:
                continue
            return
        await last.take_call(data)

    def note_lag(self, lag_s: float) -> None:
        """Report the lag of this process's event loop to admission."""
        for port in self._ports:
            port.note_lag(lag_s)

    def drain(self, target: str = "") -> None:
        """Stop admission on every engine; see :meth:`EnginePort.drain`."""
        for port in self._ports:
            port.drain(target)

    def health(self) -> Health:
        """The health of the engines together, as far as this process knows it."""
        return as_one({port.info.device: port.health() for port in self._ports})

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the health of an engine may have changed."""
        for port in self._ports:
            port.on_change(callback)

    def _note_report(self, port: EnginePort) -> None:
        self._given[port] = self._unanswered[port]

    def _ready(self) -> list[EnginePort]:
        """The engines that would admit a caller at once, fewest calls first."""
        return self._by_calls([port for port in self._ports if port.health().ready])

    def _by_calls(self, ports: Sequence[EnginePort]) -> list[EnginePort]:
        return sorted(ports, key=lambda port: port.health().active + self._given[port])

    def _waiting(self) -> EnginePort:
        """The engine whose queue takes a call that no engine admits at once."""
        able = [port for port in self._ports if port.health().is_healthy and not port.health().draining]
        return min(able or self._ports, key=lambda port: port.health().queued)

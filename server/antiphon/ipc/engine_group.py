"""The engines of one model as a front end sees them: one for each device, and each call is at one of them.

Used on the event loop's thread of their clients. A group of one engine is that engine.
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
"""Of an engine that takes no call now: another one may."""

HUNG_S: Final = 1.0
"""For an engine that hangs to say whether a call is there; the supervisor ends it soon."""


class EngineGroup:
    """Passes each call to the engine with the fewest calls of those that admit it."""

    def __init__(self, ports: Sequence[EnginePort]) -> None:
        """Stand for these engines of one model, at least one."""
        self._ports = tuple(ports)
        self.info: ModelFacts = replace(ports[0].info, slots=sum(port.info.slots for port in ports))
        self.call_bytes = max(port.call_bytes for port in ports)
        self._given = dict.fromkeys(self._ports, 0)  # calls since an engine has last reported its own
        for port in self._ports:
            port.on_change(partial(self._given.__setitem__, port, 0))

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """See :meth:`EnginePort.submit`; a call that no engine admits waits where the fewest wait."""
        for port in self._ready() if len(self._ports) > 1 else ():
            self._given[port] += 1
            try:
                return await port.submit(parameters, wait_s=0.0, notify=notify, prompt=prompt)
            except NOT_NOW:  # others have come before it
                continue
        port = self._waiting()
        self._given[port] += 1
        return await port.submit(parameters, wait_s=wait_s, notify=notify, prompt=prompt)

    async def resume(self, claim: ResumeClaim, *, notify: Notify) -> CallSession:
        """See :meth:`EnginePort.resume`; the call may be at any engine, and may have moved to another one.

        An engine that hangs is asked last, and not for long.
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
        """Whether :meth:`submit` would take a caller now, who waits ``wait_s``; raises as it would."""
        for port in self._ready() if len(self._ports) > 1 else ():
            try:
                await port.check_room(0.0)
            except NOT_NOW:
                continue
            return
        await self._waiting().check_room(wait_s)

    async def take_call(self, data: bytes) -> None:
        """See :meth:`EnginePort.take_call`."""
        *firsts, last = self._ready() or [self._waiting()]
        for port in firsts:
            try:
                await port.take_call(data)
            except NOT_NOW:
                continue
            return
        await last.take_call(data)

    def note_lag(self, lag_s: float) -> None:
        """Tell admission how late the event loop of this process runs."""
        for port in self._ports:
            port.note_lag(lag_s)

    def drain(self, target: str = "") -> None:
        """Admit no further caller anywhere; see :meth:`EnginePort.drain`."""
        for port in self._ports:
            port.drain(target)

    def health(self) -> Health:
        """How the engines are together, as far as this process knows."""
        return as_one({port.info.device: port.health() for port in self._ports})

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the health of one may be another."""
        for port in self._ports:
            port.on_change(callback)

    def _ready(self) -> list[EnginePort]:
        """Those that would admit a caller at once, the one with the fewest calls first."""
        return self._by_calls([port for port in self._ports if port.health().ready])

    def _by_calls(self, ports: Sequence[EnginePort]) -> list[EnginePort]:
        return sorted(ports, key=lambda port: port.health().active + self._given[port])

    def _waiting(self) -> EnginePort:
        """The one where a call waits that none admits."""
        able = [port for port in self._ports if port.health().is_healthy and not port.health().draining]
        return min(able or self._ports, key=lambda port: port.health().queued)

"""One call, for every protocol, transport and participant, from admission to its end, and its time limits.

A call has a transport, a dialect and a participant; the class has no subclasses. It runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from antiphon.errors import (
    AntiphonError,
    DrainingError,
    MovedError,
    ReplacedError,
    ResumeError,
    SessionTimeoutError,
)
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.resume import Claim
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.account import Account
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.exchange import Exchange
from antiphon.serve.calls.local_resume import LocalResume
from antiphon.serve.calls.participant import Participant
from antiphon.serve.calls.resume import CallResume
from antiphon.serve.calls.values import Action
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.transport.liveness import LivenessRules
from antiphon.serve.transport.transport import Message, Transport

TICK_S: Final = 1.0
"""The interval of timeout checks, unless a timeout is shorter."""


@final
class Call:
    """One call of a ``caller``; ``error`` is the error that ended it, if any."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        dialect: Dialect[Any],
        participant: Participant[Any],
        *,
        caller: Caller = ANYBODY,
        resume: CallResume | None = None,
        local: LocalResume | None = None,
        captions: Captions | None = None,
        may_record: bool = False,
    ) -> None:
        """Prepare; :meth:`admit` or :meth:`claim` gets it a row, then :meth:`run` holds the call.

        ``local`` can pass a call, if its state is not in a row, to another connection.
        """
        self.caller, self.model, self.dialect, self.participant = caller, model, dialect, participant
        self.error: AntiphonError | None = None
        facts = {"model": model.name, **({"key": caller.name} if caller.name else {})}
        self.exchange = Exchange(
            services,
            dialect,
            participant,
            self.end,
            resume=resume,
            captions=captions,
            log=services.log.bind(**facts),
            provoked=services.provoked.bind(**facts),
        )
        self._services, self._resume, self._may_record = services, resume, may_record
        self.local = local
        self._connections = 0
        self._expected: Transport | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._opened_s = services.clock()
        self._account = Account(services, caller, model, participant, dialect)
        self._liveness = LivenessRules(services.config.limits, dialect.policy.awaits)
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._ending: asyncio.Task[None] | None = None

    async def admit(self, **facts: Any) -> None:
        """Request a row from the participant; ``facts`` are for the log.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: the call gets no row and
                has ended.
        """
        try:
            await self.participant.open(self.exchange.wake)
            await self._opened(self.participant.id)
        except BaseException:
            self.abandon()
            raise
        self.exchange.log.info("session opened", state=self.participant.state, **facts)

    async def claim(self, claim: Claim) -> None:
        """Resume a call that had another connection.

        Raises:
            SessionError: the requested call does not exist, and this call has ended.
        """
        assert self._resume is not None
        desk = self._services.canary
        versions = (self.model,) if desk is None else desk.versions(self.model)
        try:
            model, session, resumed = await self._resume.claim(claim, versions, self.exchange.wake)
            self.model, self.participant.session, self.exchange.resumed = model, session, resumed
            self.dialect.tokenizer = model.tokenizer
            self._account.model = model
            self._account.resume(session, resumed.found)
            await self._opened(resumed.found.call)
        except BaseException:
            self.abandon()
            raise
        missed, messages = resumed.missed_frames, len(resumed.found.notes)
        self.exchange.log.info("session resumed", missed=missed, messages=messages)

    async def _opened(self, name: str) -> None:
        """Set the session's name, then record and watch it if requested."""
        exchange, recorder = self.exchange, self._services.recorder
        exchange.log, exchange.provoked = (
            exchange.log.bind(session=name),
            exchange.provoked.bind(session=name),
        )
        self._account.watch()
        if recorder is not None and self._may_record:
            exchange.recording = recorder.open(name)
        await exchange.open()

    def take_over(
        self,
        transport: Transport,
        claim: Claim,
        again: Callable[[], tuple[Sequence[Message], Sequence[Action]]],
    ) -> None:
        """Continue on another connection of the same client; ``again`` returns the first messages for the new
        connection.

        Raises:
            ResumeError: the call cannot be resumed.
        """
        assert self.local is not None
        self.local.claim(claim, self.caller)
        former, exchange = self.exchange.transport, self.exchange
        if former is not None:
            self._replacing = asyncio.get_running_loop().create_task(self._end_former(former))
        self._liveness = LivenessRules(self._services.config.limits, self.dialect.policy.awaits)
        exchange.go_on(transport, *again())
        exchange.log.info("session resumed")

    async def _end_former(self, transport: Transport) -> None:
        """End a connection that another one replaces."""
        error = ReplacedError("the call was resumed through another connection")
        messages, code = self.dialect.error(error)
        transport.send(messages)
        await transport.close(code, str(error))

    def expect(self, transport: Transport) -> None:
        """Count the call as active before its connection ``transport`` is open. If the call ends before, the
        connection is closed.
        """
        self._expected = transport
        self._services.calls.add(self)

    async def run(self, transport: Transport) -> None:
        """Run the call until one side ends it, or another connection takes it."""
        self._services.calls.add(self)
        self._connections += 1
        try:
            self._tick(transport)
            await self.exchange.hold(transport)
        finally:
            try:
                if not await self._continues(transport):
                    await self._part(transport)
                    await self.closed()
            finally:
                self._connections -= 1
                if not self._connections:
                    seconds = round(self._services.clock() - self._opened_s, 1)
                    self.exchange.log.info("session closed", code=transport.close_code, seconds=seconds)
                    self.abandon()

    async def _continues(self, transport: Transport) -> bool:
        """Whether another connection has the call; after a broken connection, waits for one."""
        local, exchange = self.local, self.exchange
        if local is None or exchange.transport is not transport:
            return exchange.transport not in (None, transport)
        may_wait = exchange.is_ready and not (exchange.is_ending or exchange.is_closing)
        if not (may_wait and transport.was_cut and local.is_open and local.sequence.is_whole):
            return False
        exchange.part()
        exchange.log.info("session detached", window_s=local.window_s)
        await local.wait()
        return exchange.transport is not None

    async def _part(self, transport: Transport) -> None:
        """Detach a disconnected client, or end the call: a resumable call waits for another connection."""
        resume, session, exchange = self._resume, self.participant.session, self.exchange
        may_wait = exchange.is_ready and not (exchange.is_ending or exchange.is_closing)
        if resume is not None and session is not None and may_wait and transport.was_cut:
            await resume.wait(session, exchange.log)

    def _tick(self, transport: Transport) -> None:
        """Check the time limits regularly, until another connection has the call."""
        if self.exchange.transport not in (None, transport):
            return
        period_s = min(TICK_S, self._liveness.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick, transport)
        if self.exchange.is_ending:
            return
        try:
            self._watch(transport, self._services.clock())
        except SessionTimeoutError as error:
            self.end(error)
        self.exchange.wake()  # a session that ends without a last reply is noticed only here

    def _watch(self, transport: Transport, now_s: float) -> None:
        """Check the time limits, ping a silent client, and send messages that are due.

        Raises:
            SessionTimeoutError: the client was silent for too long.
        """
        exchange, dialect, liveness = self.exchange, self.dialect, self._liveness
        silent_s, limit_s = transport.silent_s(), self._services.config.limits.liveness_timeout_s
        if self._resume is not None:
            if self._resume.is_detached:
                return
            if silent_s > limit_s:
                transport.cut()  # the client may reconnect another way
                return
        if self.local is not None:
            if exchange.transport is None:
                return
            if silent_s > limit_s:
                transport.cut()
                return
        if exchange.is_ready:
            liveness.begin(exchange.ready_s, has_spoken=not dialect.policy.expects_input)
        liveness.count_audio(exchange.audio_at_s, exchange.audio_s)
        exchange.audio_s = 0.0
        since_s = exchange.congested_since_s
        if self.participant.waits_for_us and since_s is None:
            liveness.excuse(now_s)
        liveness.is_quiet = dialect.is_quiet
        liveness.check(now_s, silent_s)
        if not dialect.policy.is_live and since_s is not None and now_s - since_s > limit_s:
            raise SessionTimeoutError(f"the client has read nothing for {limit_s:g} s")
        if transport.is_congested():
            return
        if liveness.wants_ping(silent_s):
            transport.ping()
        if exchange.is_ready:
            exchange.send(dialect.news(now_s, self.participant.stats))

    def abandon(self) -> None:
        """Release everything, unless another connection has the call; may be called at any time and
        repeatedly.
        """
        if not (self._is_over or self._connections):
            self._is_over = True
            self._services.calls.discard(self)
            self._services.changed.set()
            if self._timer is not None:
                self._timer.cancel()
            self._account.close()
            self.participant.close()
            is_elsewhere = isinstance(self.participant.reason, ReplacedError | MovedError)
            is_lost = self.exchange.is_ready and self._ending is None and not is_elsewhere
            self.dialect.over(self.participant.stats(), is_lost=is_lost)
            self.exchange.close()

    def end(self, error: AntiphonError | None = None) -> None:
        """Close the connection, with 1000, or with the error's code and its text as the reason."""
        if self._ending is None:
            self.error = error
            self.exchange.stop()
            if self.local is not None:
                self.local.leave()
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    async def closed(self) -> None:
        """Wait until the closing of the connection is complete."""
        if self._ending is not None:
            await self._ending

    async def _close(self, error: AntiphonError | None) -> None:
        self.participant.close(error)
        transport = self.exchange.transport or self._expected
        if transport is None:
            return
        self.exchange.write_waiting()
        if error is None:
            await transport.close(CloseCode.NORMAL, "done")
            return
        kind = type(error).__name__
        self.exchange.provoked.warning("session ends", of=f"end {kind}", error=kind, reason=str(error))
        messages, code = self.dialect.error(error)
        transport.send(messages)
        await transport.close(code, str(error))

    @property
    def can_move(self) -> bool:
        """Whether the client can continue the call at another worker."""
        return self._resume is not None and self._resume.window_s > 0

    def announce_draining(self, deadline_s: float) -> None:
        """Send the client the remaining seconds of the call; a draining server does not resume calls."""
        is_detached = self._resume is not None and self._resume.is_detached
        if self.local is not None:
            self.local.leave()
            is_detached = self.exchange.transport is None
        if is_detached:
            self.end(DrainingError("the server is shutting down"))
        else:
            self.exchange.send(self.dialect.draining(deadline_s))

    @property
    def words(self) -> int:
        """The number of words transcribed or synthesised so far; 0 if the protocol has none."""
        return self.dialect.words + self.participant.words

    @property
    def seconds(self) -> float:
        """Seconds of audio so far on this connection, in the longer direction."""
        return self._account.used.seconds


def find_local(services: Services, token: bytes) -> Call:
    """The call of this process that a token is valid for.

    Raises:
        ResumeError: there is no such call.
    """
    for call in services.calls:
        if isinstance(call, Call) and call.local is not None and call.local.has(token):
            return call
    raise ResumeError("unknown: no resumable call has this token")

"""One call, of any protocol, transport and participant, from its admission to its end.

A call has a transport, a dialect and a participant; nothing inherits from it. It runs on the event loop: the
reader follows messages, and the call's waker, woken by the client and by the participant, moves what can be
moved and notices what changed. Replies stay in the engine's queue while the client does not read: there the
oldest gives way before it is encoded, since an Opus stream must not lose packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, final

from antiphon.errors import (
    AntiphonError,
    DrainingError,
    FieldError,
    MovedError,
    ReplacedError,
    SessionFailedError,
    SessionTimeoutError,
)
from antiphon.ipc.values import SessionState
from antiphon.protocol.close_codes import CloseCode
from antiphon.protocol.resume import Claim
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.account import Account
from antiphon.serve.calls.actions import Acknowledged, Action, ChangeParameters, Close, Flush, PushAudio, Send
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.dialect import Dialect, HelloFacts
from antiphon.serve.calls.participant import Participant, Talker
from antiphon.serve.calls.resume import CallResume, ResumedCall
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.recording import CallRecording
from antiphon.serve.transport.liveness import LivenessRules
from antiphon.serve.transport.transport import Transport

TICK_S: Final = 1.0
"""The clock of all timeouts, unless they are shorter."""

RECHECK_S: Final = 0.02
"""How often a congested socket is looked at: a quarter of a frame."""

MESSAGES_A_TURN: Final = 8
"""Messages of one client that are read before the others have their turn: a millisecond at most."""

REPLIES_A_TURN: Final = 4
"""Replies encoded for one client before the others have their turn: half a millisecond of Opus."""


@final
class Call:
    """One call of a ``caller``.

    ``is_ready``: the client was greeted. ``waiting`` are replies that were taken and not written yet.
    """

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        dialect: Dialect[Any],
        participant: Participant[Any],
        *,
        caller: Caller = ANYBODY,
        resume: CallResume | None = None,
        captions: Captions | None = None,
        may_record: bool = False,
    ) -> None:
        """Prepare. :meth:`admit` or :meth:`claim` gets it a place, then :meth:`run` holds the call."""
        self.caller, self.dialect, self.participant = caller, dialect, participant
        self.transport: Transport | None = None
        self._services, self._model = services, model
        self._resume, self._captions, self._may_record = resume, captions, may_record
        self._clock, self._tracer = services.clock, services.tracer
        self._limits = services.config.limits
        facts = {"model": model.name, **({"key": caller.name} if caller.name else {})}
        self._log, self._provoked = services.log.bind(**facts), services.provoked.bind(**facts)
        self._waker = services.turns.waker(self._turn, self._fail)
        self._liveness = LivenessRules(self._limits, dialect.policy.awaits)
        self._recording: CallRecording | None = None
        self._resumed: ResumedCall | None = None
        self._opened_s = self._clock()
        self._account = Account(services, caller, model, participant, dialect)
        self.waiting: deque[Any] = deque()
        self.is_ready = self._is_detached = self._is_finished = self._is_over = False
        self._told_ahead: int | None = None
        self._close_s: tuple[float, float] | None = None  # the earliest end and the latest
        self._congested_since_s: float | None = None
        self._read_in_a_row = 0
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._look_s = math.inf
        self._end_error: AntiphonError | None = None
        self._ending: asyncio.Task[None] | None = None

    # Admission.

    async def admit(self, **facts: Any) -> None:
        """Ask the participant for a place; ``facts`` are for the log.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none, and the call
                is over.
        """
        try:
            await self.participant.open(self._waker.wake)
            await self._opened(self.participant.id)
        except BaseException:
            self.abandon()
            raise
        self._log.info("session opened", state=self.participant.state, **facts)

    async def claim(self, claim: Claim) -> None:
        """Go on with the call of another connection.

        Raises:
            SessionError: there is no such call, and this one is over.
        """
        assert self._resume is not None
        desk = self._services.canary
        versions = (self._model,) if desk is None else desk.versions(self._model)
        try:
            model, session, resumed = await self._resume.claim(claim, versions, self._waker.wake)
            self._model, self.participant.session, self._resumed = model, session, resumed
            self.dialect.tokenizer = model.tokenizer
            self._account.model = model
            self._account.resume(session, resumed.found)
            await self._opened(resumed.found.call)
        except BaseException:
            self.abandon()
            raise
        missed, messages = resumed.missed_frames, len(resumed.found.notes)
        self._log.info("session resumed", missed=missed, messages=messages)

    async def _opened(self, name: str) -> None:
        """There is a session, of this name: record, watch and caption it, where that is asked for."""
        self._log, self._provoked = self._log.bind(session=name), self._provoked.bind(session=name)
        self._account.watch()
        if self._services.recorder is not None and self._may_record:
            self._recording = self._services.recorder.open(name)
        captions, participant = self._captions, self.participant
        if captions is not None and isinstance(participant, Talker):
            participant.listener = captions.hear
            if (notice := await captions.admit(self._waker.wake)) is not None:
                self._do_all(self.dialect.caption(notice))

    # The life of a call over a socket.

    async def run(self, transport: Transport) -> None:
        """Hold the call until one side ends it."""
        self.transport = transport
        self._services.calls.add(self)
        self._tick()
        self._waker.wake()
        try:
            self._turn()  # the hello comes before any answer, however early the client asks
            await self._read(transport)
        except AntiphonError as error:
            self._turn()  # what was made before is heard before it
            self.end(error)
        finally:
            try:
                await self._part(transport)
                await self.closed()
            finally:
                self._services.calls.discard(self)
                self._model.metrics.closed(transport.close_code)
                seconds = round(self._clock() - self._opened_s, 1)
                self._log.info("session closed", code=transport.close_code, seconds=seconds)
                self.abandon()

    async def _part(self, transport: Transport) -> None:
        """The client has left, or all is over: a call that can be resumed waits for another connection."""
        resume, session = self._resume, self.participant.session
        if resume is None or session is None or self._ending is not None or self._close_s is not None:
            return
        if self.is_ready and transport.was_cut:
            if not self._is_detached:
                self._log.info("session detached", window_s=resume.window_s)
                self._detach()
            await resume.parted.wait()

    def _detach(self) -> None:
        """From here on nothing of the session is touched; its end says where the call is."""
        assert self.participant.session is not None
        self._is_detached = True
        self.participant.session.detach()
        if self._captions is not None:
            self._captions.close()  # its row is not frozen: it would wait at the cost of another caller

    def abandon(self) -> None:
        """Give everything back; safe at any time, and again."""
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        if not self._is_over:
            self._is_over = True
            self._account.close()
            self.participant.close()
            if self._captions is not None:
                self._captions.close()
            if self._recording is not None:
                self._recording.close()
            is_elsewhere = isinstance(self.participant.reason, ReplacedError | MovedError)
            is_lost = self.is_ready and self._ending is None and not is_elsewhere
            self.dialect.over(self.participant.stats(), is_lost=is_lost)
            self._waker.close()

    def end(self, error: AntiphonError | None = None) -> None:
        """Close from our side: 1000 without an error, else the error's code and its words as the reason."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._close(error))

    async def closed(self) -> None:
        """Wait until an end that has begun is over."""
        if self._ending is not None:
            await self._ending

    async def _close(self, error: AntiphonError | None) -> None:
        self._room.set()  # the reader goes on, and sees that it is over
        self.participant.close(error)
        transport = self.transport
        if transport is None:
            return
        with contextlib.suppress(AntiphonError):  # it ends anyway, and has its reason
            # Never more than the engine lets wait for a socket, a few milliseconds of Opus.
            self._write(transport, len(self.waiting))
        if error is None:
            await transport.close(CloseCode.NORMAL, "done")
            return
        kind = type(error).__name__
        self._provoked.warning("session ends", of=f"end {kind}", error=kind, reason=str(error))
        frames, code = self.dialect.error(error)
        transport.write(frames)
        await transport.close(code, str(error))

    def _fail(self, error: Exception) -> None:
        """A turn failed; without a word for it the fault is our own."""
        if not isinstance(error, AntiphonError):
            self._log.error("turn failed", exc_info=error)
            error = SessionFailedError(f"the server could not go on: {type(error).__name__}")
        self.end(error)

    @property
    def can_move(self) -> bool:
        """Whether its client can go on with it at another worker."""
        return self._resume is not None and self._resume.window_s > 0

    def announce_draining(self, deadline_s: float) -> None:
        """Tell the client how long the call may go on; a draining server resumes no call."""
        if self._is_detached:
            self.end(DrainingError("the server is leaving"))
        else:
            self._send(self.dialect.draining(deadline_s))

    # What comes in.

    async def _read(self, transport: Transport) -> None:
        at_once = transport.taking_at_once(self._take) if self.dialect.policy.at_once else None
        with at_once or contextlib.nullcontext():
            while self._ending is None and (message := await transport.receive_any()) is not None:
                if not self._is_detached:
                    await self._follow(message, transport)
                self._read_in_a_row = (self._read_in_a_row + 1) % MESSAGES_A_TURN
                if not self._read_in_a_row:
                    await asyncio.sleep(0)

    def _take(self, message: bytes | str) -> bytes | str | None:
        """Follow a message where it is read; what takes more than a step is left for a turn."""
        if message[:1] != self.dialect.policy.at_once or self._ending is not None or self._is_detached:
            return message
        self._do_all(self.dialect.feed(message) if self._tracer is None else self._feed(message))
        return "" if self.dialect.has_more else None

    def _feed(self, message: bytes | str) -> Sequence[Action]:
        if self._tracer is None:
            return self.dialect.feed(message)
        start_s = self._clock()
        actions = self.dialect.feed(message)
        if any(isinstance(it, PushAudio) for it in actions):
            self._tracer.span("decode", start_s, self._clock(), track="loop", session=self.participant.id)
        return actions

    async def _follow(self, message: bytes | str, transport: Transport) -> None:
        try:
            await self.obey(transport.timed(self._feed, message), transport)
            while self.dialect.has_more and not transport.has_ended and not self._is_detached:
                await asyncio.sleep(0)
                await self.obey(transport.timed(self._feed, ""), transport)
        except FieldError as error:
            if not transport.is_congested():
                self._send(self.dialect.error(error)[0])

    async def obey(self, actions: Sequence[Action], transport: Transport) -> None:
        """Do what a message asks for that came over ``transport``, the client's or another one.

        An answer can be 1 MiB long: while the client does not read, messages that have one wait.
        """
        own = self.transport if self.dialect.policy.has_answers else None
        if own is not None and own.is_congested() and not all(type(it) is PushAudio for it in actions):
            await self._wait_for_room(transport)
        self._do_all(actions)

    async def _wait_for_room(self, transport: Transport) -> None:
        """Read nothing more until there is room, or it is over, or the client has left."""
        if self._ending is None:  # else it is never set
            self._room.clear()
            await transport.wait_for(self._room)

    def _do_all(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if type(action) is PushAudio:
                self._push(action)
            else:
                self._do(action)

    def _push(self, action: PushAudio) -> None:
        transport, pcm = self.transport, action.pcm
        assert transport is not None
        received_s = transport.seen_s if self.dialect.policy.at_once else self._clock()
        self._liveness.heard(received_s, action.seconds)
        if pcm.size:
            if self._recording is not None:
                self._recording.heard(pcm)
            self.participant.put(pcm, received_s)
            if self.participant.due_s < self._look_s:
                self._look_at(self.participant.due_s)

    def _do(self, action: Action) -> None:
        session, participant = self.participant.session, self.participant
        match action:
            case Send(event, is_optional):
                if not (is_optional and self.transport is not None and self.transport.is_congested()):
                    self._send(self.dialect.encode(event))
            case ChangeParameters(change):
                if session is not None:
                    session.set_parameters(change(session.parameters))
            case Flush():
                self.waiting.clear()
                if isinstance(participant, Talker):
                    participant.flush()
                self._waker.wake()  # told with the next replies: of many flushes only the last is news
            case Acknowledged(seq):
                if session is not None:
                    session.acknowledge(seq)
            case Close(0.0):
                self.end()
            case Close(drain_s, lag_s):
                self._begin_close(drain_s, lag_s)

    def _begin_close(self, drain_s: float, lag_s: float) -> None:
        """The client asks to end: what is being said may go on for so long, without its audio."""
        if self._close_s is None:
            now_s = self._clock()
            self._close_s = now_s + lag_s, now_s + drain_s
            if self._captions is not None:
                self._captions.finish()
            if isinstance(self.participant, Talker):
                self.participant.fill_gaps(now_s)
            self._waker.wake()

    # What goes out.

    def _turn(self) -> bool:
        transport = self.transport
        if transport is None or (self._resume is not None and self._is_elsewhere(self._resume, transport)):
            return False
        if self._ending is not None:
            return False
        participant, now_s = self.participant, self._clock()
        # Asked before writing: what was made before the end is written, whatever comes in between.
        is_closed = participant.state is SessionState.CLOSED
        is_congested = transport.is_congested()
        if not self.is_ready:
            self._follow_admission(now_s)
        if self.is_ready:
            replies = participant.advance(now_s, may_take=not (is_congested or self.waiting))
            self.waiting.extend(replies)
            if self._captions is not None:
                for told in self._captions.advance(may_tell=not is_congested):
                    self._do_all(self.dialect.caption(told))
            if not is_congested and self._write(transport, REPLIES_A_TURN):
                return True
        self._notice(transport, is_congested=is_congested)
        if is_closed:
            self.end(participant.reason)
        elif participant.is_done and not self.waiting:
            self._finish(transport)
        elif self._close_s is not None and self._is_drained(now_s, *self._close_s):
            participant.finish(now_s)
        return False

    def _is_elsewhere(self, resume: CallResume, transport: Transport) -> bool:
        """Whether the call is detached from this connection, or is to be."""
        session = self.participant.session
        if session is not None and session.is_moving and self._ending is None and not self._is_detached:
            self._detach()
        if self._is_detached and (session is None or session.state is SessionState.CLOSED):
            resume.parted.set()
            if session is not None and not transport.was_cut:
                self.end(session.error)
        return self._is_detached

    def _follow_admission(self, now_s: float) -> None:
        """Tell the place in the queue when it changes; once there is a row, begin."""
        participant, policy, session = self.participant, self.dialect.policy, self.participant.session
        state = participant.state
        if state is SessionState.ACTIVE or (state is SessionState.PRIMING and not policy.is_live):
            self.is_ready = True
            self._liveness.begin(now_s, has_spoken=not policy.expects_input)
            participant.begin(now_s)
            self._send(self.dialect.hello(self._facts(now_s)))
        elif session is not None and (ahead := session.position) not in (None, self._told_ahead):
            assert ahead is not None
            self._told_ahead = ahead
            self._send(self.dialect.queued(ahead, session.retry_after_s))

    def _facts(self, now_s: float) -> HelloFacts:
        resume, session, resumed = self._resume, self.participant.session, self._resumed
        can_arm = resume is not None and resumed is None and session is not None
        return HelloFacts(
            session=self.participant.id if resumed is None else resumed.found.call,
            parameters=self.participant.parameters,
            now_s=now_s,
            is_recorded=self._recording is not None,
            terms=resume.arm(session) if can_arm and resume is not None and session is not None else None,
            resumed=resumed,
            next_frame=0 if resumed is None or session is None else session.next_frame,
        )

    def _write(self, transport: Transport, most: int) -> bool:
        """Send some replies in one write; true when more are ready and can go."""
        waiting, participant, dialect = self.waiting, self.participant, self.dialect
        parts: list[bytes] = []
        if participant.kept_from is not None:
            parts.append(dialect.interrupted(participant.kept_from))
            participant.kept_from = None
        elif not waiting:
            return False
        sent = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        start_s = self._clock()
        for reply in sent:
            if self._recording is not None and reply.pcm is not None:
                self._recording.said(reply.pcm)
            parts.append(dialect.frames(reply))
        encoded_s = self._clock()
        if data := b"".join(parts):
            if self._resume is not None and participant.session is not None:
                told_frame = sent[-1].frame + 1 if sent else 0
                self._resume.sequence.note(participant.session, told_frame)
            transport.write(data)
        now_s = self._clock()
        for reply in sent:
            if seconds := participant.sent(reply, now_s, transport.stalled_s):
                self._liveness.heard(now_s, seconds)
        if self._tracer is not None:
            self._tracer.span("encode", start_s, encoded_s, track="loop", session=participant.id)
            self._tracer.span("send", encoded_s, now_s, track="loop", frames=len(sent))
        return bool(waiting)

    def _send(self, data: bytes) -> None:
        """Write frames that are no replies."""
        if data and self.transport is not None:
            if self._resume is not None and self.participant.session is not None:
                self._resume.sequence.note(self.participant.session, 0)
            self.transport.write(data)

    def _finish(self, transport: Transport) -> None:
        """All is answered: say the last words, and end; nothing is cut off where nothing may be dropped."""
        if not self._is_finished:
            self._is_finished = True
            data, self._end_error = self.dialect.finish(self.participant.stats())
            self._send(data)
        if self.dialect.policy.is_live or not transport.has_unsent:
            self.end(self._end_error)

    def _is_drained(self, now_s: float, earliest_s: float, latest_s: float) -> bool:
        """Whether all that came is answered and the participant is silent, or has had its time."""
        if now_s >= latest_s:
            return True
        is_written = self._captions is None or self._captions.is_idle
        is_silent = self.participant.is_idle and not self.dialect.is_speaking
        return is_silent and is_written and now_s >= earliest_s

    # Time.

    def _notice(self, transport: Transport, *, is_congested: bool) -> None:
        """Remember since when the client takes nothing, open the room for more, and look again in time."""
        due_s = self.participant.due_s
        if is_congested or (self._is_finished and transport.has_unsent):
            now_s = self._clock()
            self._congested_since_s = self._congested_since_s or now_s
            due_s = min(due_s, now_s + RECHECK_S)
        else:
            self._congested_since_s = None
            if not self.participant.is_full:
                self._room.set()
        if due_s < self._look_s:
            self._look_at(due_s)

    def _look_at(self, due_s: float) -> None:
        """Take a turn at this time, or before: nothing says when a socket drains or audio is overdue."""
        if self._look is not None:
            self._look.cancel()
        self._look_s = due_s
        delay_s = max(0.001, due_s - self._clock())
        self._look = asyncio.get_running_loop().call_later(delay_s, self._on_look)

    def _on_look(self) -> None:
        self._look, self._look_s = None, math.inf
        self._waker.wake()

    def _tick(self) -> None:
        """Look now and then."""
        period_s = min(TICK_S, self._liveness.period_s)
        self._timer = asyncio.get_running_loop().call_later(period_s, self._tick)
        if self.transport is None or self._ending is not None:
            return
        try:
            self._watch(self.transport, self._clock())
        except SessionTimeoutError as error:
            self.end(error)
        self._waker.wake()  # a session that ends without a last reply is noticed here alone

    def _watch(self, transport: Transport, now_s: float) -> None:
        """Look at the time: timeouts, a ping for a silent client, and what its protocol tells now and then.

        Raises:
            SessionTimeoutError: the client was waited for long enough.
        """
        silent_s, limit_s, liveness = transport.silent_s(), self._limits.liveness_timeout_s, self._liveness
        if self._resume is not None:
            if self._is_detached:
                return
            if silent_s > limit_s:
                transport.cut()  # the client may come back another way
                return
        is_live, since_s = self.dialect.policy.is_live, self._congested_since_s
        if self.participant.waits_for_us and since_s is None:
            liveness.excuse(now_s)
        liveness.is_quiet = self.dialect.is_quiet
        liveness.check(now_s, silent_s)
        if not is_live and since_s is not None and now_s - since_s > limit_s:  # whether or not we still read
            raise SessionTimeoutError(f"the client has read nothing for {limit_s:g} s")
        if transport.is_congested():
            return
        if liveness.wants_ping(silent_s):
            transport.ping()
        if self.is_ready:
            self._send(self.dialect.news(now_s, self.participant.stats))

    # What it used.

    @property
    def words(self) -> int:
        """Words written, heard or said so far, as far as the protocol has any."""
        return self.dialect.words

    @property
    def seconds(self) -> float:
        """Seconds of audio so far over this connection, of the direction that has more."""
        return self._account.used.seconds

"""The traffic of one connection of a call: messages to actions, and replies to messages.

The reader handles messages. The waker, which the client and the participant wake, runs turns. A turn moves
waiting data and detects changes. While the client does not read, replies remain in the engine's queue. The
oldest reply is dropped there, before it is encoded, because an Opus stream must not lose packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, AudioError, FieldError, SessionFailedError
from antiphon.ipc.values import SessionState
from antiphon.log import Log, SparseLog
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.participant import Participant, Talker
from antiphon.serve.calls.resume import CallResume, ResumedCall
from antiphon.serve.calls.values import (
    Acknowledged,
    Action,
    ChangeParameters,
    Close,
    EndInput,
    Flush,
    HelloFacts,
    Instruct,
    PushAudio,
    PushWords,
    ReadPrompt,
    Send,
    Transcribe,
)
from antiphon.serve.hosting.services import Services
from antiphon.serve.hosting.turns import Waker
from antiphon.serve.media.recording import CallRecording
from antiphon.serve.transport.socket import RECHECK_S
from antiphon.serve.transport.transport import Message, Transport

MESSAGES_A_TURN: Final = 8
"""Number of messages of one client that are read before others are served; this takes at most a millisecond.
"""

REPLIES_A_TURN: Final = 4
"""Number of replies that are encoded for one client before others are served: half a millisecond of Opus."""

_SLOW: Final = frozenset({PushWords, ReadPrompt, Transcribe})
"""Actions that last longer than a turn."""


class Exchange:
    """The traffic between a call's client and its participant, until it calls ``end``.

    ``is_ready``: the client was greeted, at ``ready_s``. ``waiting`` has replies that were taken and not yet
    written. ``is_ending``: no further message is read, and no further turn runs. ``resumed`` is the call that
    this one continues, ``recording`` the recording of its audio, if any. ``audio_s`` is the number of seconds
    of audio since the last check of time limits; the latest arrived at ``audio_at_s``. ``congested_since_s``
    is the time at which the client stopped reading, None while it reads.
    """

    def __init__(
        self,
        services: Services,
        dialect: Dialect[Any],
        participant: Participant[Any],
        end: Callable[[AntiphonError | None], None],
        *,
        resume: CallResume | None = None,
        captions: Captions | None = None,
        log: Log,
        provoked: SparseLog,
    ) -> None:
        """Prepare; :meth:`hold` begins."""
        self.dialect, self.participant = dialect, participant
        self.transport: Transport | None = None
        self.resumed: ResumedCall | None = None
        self.recording: CallRecording | None = None
        self.captions = captions
        self.log, self.provoked = log, provoked
        self.waiting: deque[Any] = deque()
        self.is_ready = self.is_ending = False
        self._end, self._resume = end, resume
        self._clock, self._tracer, self._reading = services.clock, services.tracer, services.reading
        self._waker = Waker(services.turns, self.turn, self._fail_turn)
        self.wake = self._waker.wake
        self.ready_s = self.audio_s = 0.0
        self.audio_at_s = -math.inf
        self.congested_since_s: float | None = None
        self._is_listening = self._is_preparing = self._is_finished = self._is_input_over = False
        self._reported_ahead: int | None = None
        self._close_s: tuple[float, float] | None = None  # earliest and latest end
        self._room = asyncio.Event()
        self._needs_room = False
        self._last_error: AntiphonError | None = None
        self._held: Sequence[Action] = ()  # of a client's message, until there is room

    async def open(self) -> None:
        """Start captions and the dialect's own processing of audio, if any, once the session exists."""
        self._listen_in()
        if self.captions is not None and (notice := await self.captions.admit(self.wake)):
            self._do_all(self.dialect.caption(notice))

    async def hold(self, transport: Transport) -> None:
        """Read the client's messages until it has disconnected, or the call is over."""
        self.transport = transport
        self._waker.run()  # the hello is sent before any answer
        try:
            await self._read(transport)
        except Exception as error:  # a boundary: an error of one message ends only its call
            if transport is self.transport:  # otherwise another connection has the call
                self._waker.run()  # earlier replies are sent first
                self._fail(error)

    def part(self) -> None:
        """Detach from a connection that has ended; no message is sent until :meth:`go_on`."""
        self.transport = None

    def go_on(self, transport: Transport, messages: Sequence[Message], actions: Sequence[Action]) -> None:
        """Continue on another connection, whose client gets these messages first."""
        self.transport, self.ready_s, self.congested_since_s = transport, self._clock(), None
        self._do_all([it for it in self._held if type(it) is PushAudio])  # it counts as received
        self._held = ()
        self.send(messages)
        self._do_all(actions)
        self.wake()

    @property
    def is_closing(self) -> bool:
        """Whether the client has requested the end."""
        return self._close_s is not None

    def stop(self) -> None:
        """Stop reading, and run no further turns."""
        self.is_ending = True
        self._room.set()  # the reader wakes, and finds that the call is over

    def write_waiting(self) -> None:
        """Write the replies that were already taken: at most a full queue, a few milliseconds of Opus."""
        if self.transport is not None:
            with contextlib.suppress(AntiphonError):  # the call is ending already, with its own reason
                self._write(self.transport, len(self.waiting))

    def close(self) -> None:
        """Release all resources."""
        if self.captions is not None:
            self.captions.close()
        if self.recording is not None:
            self.recording.close()
        self._waker.close()
        # A call, its exchange and its participant reference each other: break the cycle to free their memory
        # now.
        self._end = lambda _error: None
        if isinstance(self.participant, Talker):
            self.participant.listener = None

    def _fail_turn(self, error: Exception) -> None:
        if isinstance(error, AudioError):  # as a message's error it would be attributed to the peer
            error = SessionFailedError(f"the model's audio cannot be encoded: {error}")
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the call; an error without a code counts as a server fault."""
        if not isinstance(error, AntiphonError):
            self.log.error("call failed", exc_info=error)
            error = SessionFailedError(f"the server failed: {type(error).__name__}")
        self._end(error)

    # From the client.

    async def _read(self, transport: Transport) -> None:
        at_once = transport.taking_at_once(self._take) if self.dialect.policy.at_once else None
        read = 0
        with at_once or contextlib.nullcontext():
            while not self.is_ending and (message := await transport.receive_any()) is not None:
                if transport is not self.transport:
                    return
                if self._resume is None or not self._resume.is_detached:
                    await self._follow(message, transport)
                read += 1
                if read % MESSAGES_A_TURN == 0:
                    await asyncio.sleep(0)

    def _take(self, message: Message) -> Message | None:
        """Handle a message where it is read; longer work waits for a turn."""
        if message[:1] != self.dialect.policy.at_once or self.is_ending:
            return message
        if self._resume is not None and self._resume.is_detached:
            return None
        actions = self.dialect.feed(message) if self._tracer is None else self._traced(message)
        if actions:
            self._do_all(actions)
        return "" if self.dialect.has_more else None

    def _traced(self, message: Message) -> Sequence[Action]:
        """Return the dialect's actions for a message, and trace the time if the message has audio."""
        assert self._tracer is not None
        start_s = self._clock()
        actions = self.dialect.feed(message)
        if any(isinstance(it, PushAudio) for it in actions):
            self._tracer.span("decode", start_s, self._clock(), track="loop", session=self.participant.id)
        return actions

    async def _follow(self, message: Message, transport: Transport) -> None:
        feed = self.dialect.feed if self._tracer is None else self._traced
        try:
            await self.obey(transport.timed(feed, message), transport)
            while self.dialect.has_more and not (self.is_ending or transport.has_ended):
                await asyncio.sleep(0)
                if transport is not self.transport:
                    return
                await self.obey(transport.timed(feed, ""), transport)
        except FieldError as error:
            if not transport.is_congested():
                self.send(self.dialect.error(error)[0])

    async def obey(self, actions: Sequence[Action], transport: Transport) -> None:
        """Carry out the actions of a message that arrived over ``transport``, which belongs to the client or
        to a watcher.

        An answer can be 1 MiB long: while the client does not read, messages with an answer wait.
        """
        own = self.transport if self.dialect.policy.has_answers else None
        if own is not None and own.is_congested() and not all(type(it) is PushAudio for it in actions):
            if own is not transport:
                await self._wait_for_room(transport)
            else:
                self._held = actions
                await self._wait_for_room(transport)
                if transport is not self.transport:
                    return  # another connection has the call, and its audio
                self._held = ()
        for action in actions:
            if type(action) in _SLOW:
                self._is_preparing = True
                try:
                    await self._prepare(action, transport)
                finally:
                    self._is_preparing = False
            else:
                if not self._is_listening:
                    self._follow_admission(self._clock())  # the client's first message may begin it
                self._do(action)
        if self.dialect.marks:
            self._set_marks()
        if not self.dialect.policy.is_live:
            self.wake()
        elif not self._is_listening:
            self._follow_admission(self._clock())
        if self.participant.is_full:
            await self._wait_for_room(transport)
        if self._is_input_over and not self.dialect.policy.reads_on and not self.is_ending:
            self._room.clear()  # later only the end sets it
            await transport.wait_for(self._room)

    async def _prepare(self, action: Action, transport: Transport) -> None:
        """Carry out work that takes longer than a turn."""
        match action:
            case PushWords(text):
                pieces = self.participant.read(text)
                while await self._reading.step(pieces) is not None:
                    self.wake()
                    if self.participant.is_full:
                        await self._wait_for_room(transport)
                    if self.is_ending or transport.has_ended:
                        break
            case ReadPrompt(make):
                if (prompt := await make()) is not None:
                    self.participant.read_prompt(prompt)
            case Transcribe(captions, then) if not self.is_ending:
                self.captions = captions
                if (notice := await captions.admit(self.wake)) is None:
                    self._listen_in()
                    then()
                else:
                    self.captions = None
                    self.provoked.info("no transcript", of="no transcript", reason=notice.message)
                    self._do_all(self.dialect.caption(notice))

    def _listen_in(self) -> None:
        """Pass the participant's audio to captions and the dialect, if they process it."""
        if isinstance(self.participant, Talker) and (self.captions or self.dialect.policy.hears):
            self.participant.listener = self._heard

    def _heard(self, pcm: FloatArray) -> None:
        if self.captions is not None:
            self.captions.hear(pcm)
        if self.dialect.policy.hears:
            self._do_all(self.dialect.heard(pcm))

    def _set_marks(self) -> None:
        marks, self.dialect.marks = self.dialect.marks, []
        for marker in marks:
            if self.captions is None:
                self.participant.mark(marker)
            else:
                self.captions.mark(marker)
        self.wake()  # the marker counts even if no audio follows

    async def _wait_for_room(self, transport: Transport) -> None:
        """Stop reading until there is room, the call is over, or the client has disconnected."""
        if not self.is_ending:  # otherwise it is never set
            self._room.clear()
            self._needs_room = True
            self.wake()  # the turn may have ended before the client stopped reading
            await transport.wait_for(self._room)

    def _do_all(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._do(action)
        if self.dialect.marks:
            self._set_marks()

    def _do(self, action: Action) -> None:
        session, participant = self.participant.session, self.participant
        match action:
            case PushAudio(pcm, seconds):
                assert self.transport is not None
                received_s = self.transport.seen_s if self.dialect.policy.at_once else self._clock()
                self.audio_s, self.audio_at_s = self.audio_s + seconds, received_s
                if pcm.size:
                    if self.recording is not None:
                        self.recording.heard(pcm)
                    participant.put(pcm, received_s)
                    if participant.due_s < math.inf:
                        self._waker.wake_at(participant.due_s, received_s)
            case EndInput():
                self._is_input_over = True
                participant.finish(self._clock())
            case Send(event, is_optional):
                if not (is_optional and self.transport is not None and self.transport.is_congested()):
                    self.send(self.dialect.encode(event))
            case ChangeParameters(change):
                if session is not None:
                    session.set_parameters(change(session.parameters))
            case Flush():
                self.waiting.clear()
                if isinstance(participant, Talker):
                    participant.flush()
                self.wake()  # sent with the next replies: only the last of many flushes counts
            case Acknowledged(seq):
                if session is not None:
                    session.acknowledge(seq)
            case Instruct(request):
                participant.obey(request)
            case Close(0.0):
                self._end(None)
            case Close(drain_s, lag_s):
                self._begin_close(drain_s, lag_s)

    def _begin_close(self, drain_s: float, lag_s: float) -> None:
        """Begin the end that the client requests; the current reply may continue for ``drain_s``."""
        if self._close_s is None:
            now_s = self._clock()
            self._close_s = now_s + lag_s, now_s + drain_s
            if self.captions is not None:
                self.captions.finish()
            if isinstance(self.participant, Talker):
                self.participant.fill_gaps(now_s)
            self.wake()

    # To the client.

    def turn(self) -> bool:
        """Move waiting data and detect changes; return true if more work is due at once."""
        transport, participant = self.transport, self.participant
        if transport is None:
            if self.is_ready and not self.is_ending and participant.state is SessionState.CLOSED:
                self._end(participant.reason)  # it has no row for another connection
            return False
        if self._resume is not None and self._is_elsewhere(self._resume, transport):
            return False  # first: an end from the other connection is noticed here
        if self.is_ending:
            return False
        now_s = self._clock()
        # Read before writing: replies made before the end are written, even if more arrive meanwhile.
        is_closed = participant.state is SessionState.CLOSED
        is_congested = transport.is_congested()
        if not self._is_listening:
            self._follow_admission(now_s)
        if self._is_listening:
            self.waiting.extend(participant.advance(now_s, may_take=not (is_congested or self.waiting)))
            if self.captions is not None:
                for told in self.captions.advance(may_report=not is_congested):
                    self._do_all(self.dialect.caption(told))
            if not is_congested and self._write(transport, REPLIES_A_TURN):
                return True
            if not is_congested and now_s >= self.dialect.due_s:
                self.send(self.dialect.due(now_s))
        if is_closed:
            self._end(participant.reason)
        elif participant.is_done and not self.waiting:
            self._finish(transport)
        elif self._close_s is not None and self._is_drained(now_s, *self._close_s):
            participant.finish(now_s)
        due_s = participant.due_s if is_congested else min(participant.due_s, self.dialect.due_s)
        if is_congested or (self._is_finished and transport.has_unsent):
            now_s = self._clock()
            self.congested_since_s = self.congested_since_s or now_s
            due_s = min(due_s, now_s + RECHECK_S)
        else:
            self.congested_since_s = None
            if self._needs_room and not participant.is_full:
                self._needs_room = False
                self._room.set()
        if due_s < math.inf:
            self._waker.wake_at(due_s, self._clock())
        return False

    def _is_elsewhere(self, resume: CallResume, transport: Transport) -> bool:
        """Whether the call is detached from this connection, or will be."""
        session = self.participant.session
        if session is None or not resume.look(session, is_ending=self.is_ending):
            return False
        if self.captions is not None:
            self.captions.close()  # its row is not frozen: waiting would hold up another caller
        if session.state is SessionState.CLOSED and not transport.was_cut:
            self._end(session.error)
        return True

    def _follow_admission(self, now_s: float) -> None:
        """Send the place in the queue when it changes; once there is a row, greet, and start reading
        audio."""
        participant, dialect, session = self.participant, self.dialect, self.participant.session
        state = participant.state
        has_row = state is SessionState.ACTIVE or (
            state is SessionState.PRIMING and not dialect.policy.is_live
        )
        if has_row and not self.is_ready:
            self.is_ready, self.ready_s = True, now_s
            self.send(dialect.hello(self._facts(now_s)))
        if has_row and not self._is_preparing:
            if now_s < dialect.listens_at_s:
                self._waker.wake_at(dialect.listens_at_s, now_s)
                return
            self._is_listening = True
            participant.begin(now_s)
            self.send(dialect.listening())
        elif session is not None and (ahead := session.position) not in (None, self._reported_ahead):
            assert ahead is not None
            self._reported_ahead = ahead
            self.send(dialect.queued(ahead, session.retry_after_s))

    def _facts(self, now_s: float) -> HelloFacts:
        resume, session, resumed = self._resume, self.participant.session, self.resumed
        can_arm = resume is not None and resumed is None and session is not None
        return HelloFacts(
            session=self.participant.id if resumed is None else resumed.found.call,
            parameters=self.participant.parameters,
            now_s=now_s,
            is_recorded=self.recording is not None,
            terms=resume.arm(session) if can_arm and resume is not None and session is not None else None,
            resumed=resumed,
            next_frame=0 if resumed is None or session is None else session.next_frame,
        )

    def _write(self, transport: Transport, most: int) -> bool:
        """Send some replies in one write; true when more are ready and can be sent."""
        waiting, participant, dialect = self.waiting, self.participant, self.dialect
        messages: list[Message] = []
        if participant.kept_from is not None:
            messages += dialect.interrupted(participant.kept_from)
            participant.kept_from = None
        elif not waiting:
            return False
        sent = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        start_s = self._clock()
        for reply in sent:
            if self.recording is not None and reply.pcm is not None:
                self.recording.said(reply.pcm)
            messages += dialect.messages(reply)
        encoded_s = self._clock()
        if messages:
            if self._resume is not None and participant.session is not None:
                text_frame = sent[-1].frame + 1 if sent else 0
                self._resume.sequence.note(participant.session, text_frame)
            transport.send(messages)
        if dialect.marks:
            self._set_marks()
        now_s = self._clock()
        for reply in sent:
            if seconds := participant.sent(reply, now_s, transport.stalled_s):
                self.audio_s, self.audio_at_s = self.audio_s + seconds, now_s
        if self._tracer is not None:
            self._tracer.span("encode", start_s, encoded_s, track="loop", session=participant.id)
            self._tracer.span("send", encoded_s, now_s, track="loop", frames=len(sent))
        return bool(waiting)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages that do not belong to a reply."""
        if messages and self.transport is not None:
            if self._resume is not None and self.participant.session is not None:
                self._resume.sequence.note(self.participant.session, 0)
            self.transport.send(messages)

    def _finish(self, transport: Transport) -> None:
        """All input is answered: send the last messages, and end, without cuts if nothing may be dropped."""
        if not self._is_finished:
            self._is_finished = True
            messages, self._last_error = self.dialect.finish(self.participant.stats())
            self.send(messages)
        if self.dialect.policy.is_live or not transport.has_unsent:
            self._end(self._last_error)

    def _is_drained(self, now_s: float, earliest_s: float, latest_s: float) -> bool:
        """Whether all input is answered and the participant is silent, or its time is over."""
        if now_s >= latest_s:
            return True
        is_written = self.captions is None or self.captions.is_idle
        is_silent = self.participant.is_idle and not self.dialect.is_speaking
        return is_silent and is_written and now_s >= earliest_s

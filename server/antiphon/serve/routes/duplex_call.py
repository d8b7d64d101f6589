"""The base of JSON-event conversations with a full-duplex model: audio in and out all the time.

The model hears without a pause: silence stands in for audio that is overdue. What it says between answers is
gated to exact zeros. Subclasses speak a protocol.
"""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, AudioError, FieldError
from antiphon.ipc.engine_client import CallSession
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.live_session import LiveFormat
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.dialects.event_audio import line_of
from antiphon.serve.hosting.dialogue import RECHECK_S, REPLIES_A_TURN, SocketConversation
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.socket import Socket


class DuplexCall(SocketConversation):
    """A conversation in events. Its socket was open before."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        heard: LiveFormat,
        said: LiveFormat,
        *,
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare. The caller is ``heard`` in one format and the model ``said`` in another."""
        super().__init__(services, model, caller=caller)
        self._line = DuplexLine(line_of(heard), model.engine.info.spec, line_of(said))
        self._taken: deque[FrameReply] = deque()
        self._words = 0
        self._close_by_s: float | None = None

    @property
    def words(self) -> int:
        """Words of the model so far."""
        return self._words

    # What a protocol adds.

    @abstractmethod
    async def follow(self, message: bytes | str, socket: Socket) -> None:
        """Follow one message of the client.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """

    @abstractmethod
    def complain(self, error: AntiphonError) -> None:
        """Say what was wrong with a message; to a client that does not read, nothing."""

    @abstractmethod
    def _frames_of(self, reply: FrameReply) -> list[bytes]:
        """The messages, framed, that one reply of the model becomes."""

    @abstractmethod
    def _begin(self) -> None:
        """There is a row."""

    @abstractmethod
    def _finish(self, _session: CallSession) -> None:
        """All that was asked for is said: tell the client, and end."""

    def _heard(self, pcm: FloatArray) -> None:
        """The model hears this now, float32 ``[N]``."""

    def _tell_input(self) -> None:
        """Send what is known by now of what the caller has said."""

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (message := await socket.receive_any()) is not None:
            try:
                await self.follow(message, socket)
            except FieldError as error:
                self.complain(error)
            if self._is_others_turn():
                await asyncio.sleep(0)

    def hear(self, audio: bytes, event_id: str | None) -> FloatArray | None:
        """Audio of the client, in its format; returns it as the model hears it, None where it hears nothing.

        Raises:
            FieldError: half a sample.
        """
        if not self._is_ready or self._close_by_s is not None:
            return None  # not started yet, or asked to end
        try:
            pcm = self._line.decode(audio)
        except AudioError as error:
            raise FieldError(
                f"audio is {error}", param="audio", code=INVALID_VALUE, event_id=event_id
            ) from error
        now_s = self._clock()
        self._patience.heard(now_s, pcm.size / self._model.engine.info.spec.sample_rate)
        self._push(self._line.arrive(pcm, now_s), now_s)
        self._look_at_time(now_s)
        return pcm

    def begin_close(self, drain_s: float) -> None:
        """The client asks to end: what is being said may go on for so long."""
        if self._close_by_s is None:
            self._close_by_s = self._clock() + drain_s
            self._waker.wake()

    def _listen(self) -> None:
        """From now on the model hears."""
        now_s = self._clock()
        self._line.start(now_s)
        self._patience.begin(now_s, has_spoken=True)  # a client has its microphone to ask for

    def _push(self, pcm: FloatArray, now_s: float) -> None:
        if pcm.size and self._session is not None:
            self._session.push(pcm, now_s)
            self._heard(pcm)

    # What goes out.

    def _advance(self, socket: Socket, session: CallSession) -> bool:
        if not socket.is_congested():
            self._room.set()
        is_closed = session.state is SessionState.CLOSED
        if not self._is_ready and session.state is SessionState.ACTIVE:
            self._is_ready = True
            self._patience.begin(self._clock())
            self._begin()
        if self._line.clock is not None:
            now_s = self._clock()
            self._push(self._line.clock.look(now_s), now_s)
            self._tell_input()
            if self._write(socket, session):
                return True
            self._look_at_time(now_s)
        if is_closed:
            self.end(session.error)
        elif session.is_done and not self._taken:
            self._finish(session)
        elif self._close_by_s is not None and self._is_drained(session, self._close_by_s):
            session.finish()
        return False

    def _is_drained(self, session: CallSession, close_by_s: float) -> bool:
        """Whether all that came is answered and the model is silent, or it has had its time."""
        return (session.is_idle and not self._line.is_speaking) or self._clock() >= close_by_s

    def _look_at_time(self, now_s: float) -> None:
        """Take a turn when audio will be overdue or has settled, or soon where the peer does not read."""
        if self._line.clock is not None:
            due_s = max(0.001, self._line.clock.due_s - now_s)
            due_s = min(due_s, RECHECK_S) if self._is_congested() else due_s
            self._look_again_in(due_s if math.isfinite(due_s) else None)

    def _is_congested(self) -> bool:
        return self._socket is not None and self._socket.is_congested()

    def _write(self, socket: Socket, session: CallSession) -> bool:
        """Send some replies in one write; true when more are ready and can go."""
        if socket.is_congested():
            return False
        if not self._taken:
            self._taken.extend(session.take())
        self._write_some(socket, session, REPLIES_A_TURN)
        return bool(self._taken)

    def _write_taken(self, socket: Socket) -> None:
        if self._session is not None:
            self._write_some(socket, self._session, len(self._taken))

    def _write_some(self, socket: Socket, session: CallSession, replies: int) -> None:
        """Write so many of the replies taken."""
        sent = [self._taken.popleft() for _ in range(min(replies, len(self._taken)))]
        if not sent:
            return
        frames = b"".join(part for reply in sent for part in self._frames_of(reply))
        self._before_write(session, sent)
        socket.write(frames)
        now_s = self._clock()
        for reply in sent:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))

    def _before_write(self, session: CallSession, replies: Sequence[FrameReply]) -> None:
        """Frames that answer these replies are about to be sent."""

    def _text_of(self, reply: FrameReply) -> str:
        """The piece of text that a frame speaks, or ""."""
        if reply.text_token is None or self._model.tokenizer is None:
            return ""
        text = self._model.tokenizer.piece(reply.text_token)
        self._words += text.startswith(" ")
        return text

    # Time.

    def _seconds(self, session: CallSession) -> float:
        return round(session.stats().frames_in * self._model.engine.info.spec.frame_ms / 1000, 2)

    def _watch(self, socket: Socket, _session: CallSession, now_s: float) -> None:
        silent_s = socket.silent_s()
        self._patience.check(now_s, silent_s)
        if not socket.is_congested() and self._patience.wants_ping(silent_s):
            socket.ping()

"""A session of OpenAI Live that outlives its connection, for clients that ask for it.

It keeps its client's time: frame N of its input is the client's frame N, so nothing stands in for audio that
is overdue, as nothing does in ``/api/chat``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.audio.pcm import FloatArray
from antiphon.errors import MovedError, ReplacedError
from antiphon.ipc.port import CallSession
from antiphon.ipc.resumption import Resumption
from antiphon.ipc.values import FrameReply
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.chat import ResumeMode
from antiphon.serve.hosting.resumable import ResumableConversation, missed_frames
from antiphon.serve.routes.live_audience import NumberedAudience
from antiphon.serve.routes.live_call import LiveCall
from antiphon.serve.transport.socket import Socket


class ResumableLiveCall(ResumableConversation, LiveCall):
    """A session that another connection of its client can take over, or one that was taken over."""

    _found: tuple[Resumption, bytes] | None = None

    def _new_audience(self) -> NumberedAudience:
        self._keep()
        return NumberedAudience(lambda: self._socket, self._numbering, lambda: self._session)

    @property
    def live_id(self) -> str:
        """What the protocol calls the session, on every connection."""
        return super().live_id if self._found is None else f"live_{self._found[0].call}"

    async def admit(self) -> None:
        """Ask for a row, or for the session that is claimed.

        Raises:
            AntiphonError: there is none.
        """
        if not isinstance(self._start, live.ResumeSession):
            await super().admit()
            return
        session, found, token = await self._claim(self._start.claim)
        self._found = found, token
        self._line.is_muted = self._start.is_muted
        self._heard_before_s = session.next_frame * self._model.engine.info.spec.frame_ms / 1000
        await self._admit_recogniser()

    # What comes in.

    async def follow(self, message: bytes | str, socket: Socket) -> None:
        """Follow one event of the client; what comes while the session is let go is not heard.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """
        if not self._is_detached:
            await super().follow(message, socket)

    def hear(self, audio: bytes, event_id: str | None) -> FloatArray | None:
        """Audio of the client; None where it hears nothing.

        Raises:
            FieldError: half a sample.
        """
        return None if self._is_detached else super().hear(audio, event_id)

    def _acknowledge(self, event: live.AcknowledgeEvents) -> None:
        if self._session is not None:
            self._session.acknowledge(event.seq)

    def begin_close(self, drain_s: float) -> None:
        """The client asks to end: the answer goes on without its audio."""
        super().begin_close(drain_s)
        self._line.start(self._clock())

    def _listen(self) -> None:
        self._line.follow_caller()
        self._patience.begin(self._clock(), has_spoken=True)

    # What goes out.

    def _greet(self) -> None:
        session, start = self._session, self._start
        assert session is not None
        if self._found is None:
            terms = self._arm(session)
            terms = terms and {**terms, "frame_ms": self._model.engine.info.spec.frame_ms}
            self.audience.send(events.SessionStarted(self._shown(), start.event_id, terms))
            return
        found, token = self._found
        self.audience.send(self._resumed(session, found, token))
        if self._socket is not None:
            self._socket.write(b"".join(data for _, data in found.notes))

    def _resumed(self, session: CallSession, found: Resumption, token: bytes) -> events.SessionResumed:
        assert isinstance(self._start, live.ResumeSession)
        return events.SessionResumed(
            self._shown(),
            self._terms(token),
            input_frame=session.next_frame,
            replay_from=found.replay_from,
            missed_frames=missed_frames(self._start.claim, found),
            client_event_id=self._start.event_id,
        )

    def _audio_of(self, data: bytes, reply: FrameReply) -> events.OutputAudio:
        return events.OutputAudio(data, frame=reply.frame)

    def _text_of(self, reply: FrameReply) -> str:
        return super()._text_of(reply) if reply.frame >= self._numbering.first_news else ""

    def _before_write(self, session: CallSession, replies: Sequence[FrameReply]) -> None:
        self._numbering.note(session, replies[-1].frame + 1)

    # Without a connection.

    @property
    def _may_wait(self) -> bool:
        return self._close_asked is None

    def _detach(self, session: CallSession) -> None:
        super()._detach(session)
        if self._recogniser is not None:
            self._recogniser.close()  # its row is not frozen: it would wait at the cost of another caller

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        if self._is_watched(socket):
            super()._watch(socket, session, now_s)

    def _end_audience(self) -> None:
        session = self._session
        if session is not None and isinstance(session.error, ReplacedError | MovedError):
            self.audience.end()  # it goes on, with another connection
        else:
            super()._end_audience()


def is_resumption(query: Mapping[str, str]) -> bool:
    """Whether a connection goes on with a session."""
    return query.get("resume") == ResumeMode.AGAIN

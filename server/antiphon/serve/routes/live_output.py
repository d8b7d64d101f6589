"""The model's side of a live session, as events: audio frame by frame, and the text spoken in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from antiphon.audio.pcm import s16le_from_float
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import FrameReply
from antiphon.models.tokenizer import Tokenizer
from antiphon.protocol import live_events as events
from antiphon.serve.hosting.dialogue import REPLIES_A_TURN
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.routes.live_audience import Audience
from antiphon.serve.transport.socket import Socket


class LiveOutput:
    """The model's replies on their way to the client. ``clock`` is the engine's; ``words`` are counted."""

    def __init__(
        self,
        line: DuplexLine,
        tokenizer: Tokenizer | None,
        audience: Audience,
        clock: Callable[[], float],
    ) -> None:
        """Encode with ``line``; ``tokenizer`` is None where the model has no text."""
        self.words = 0
        self._line, self._tokenizer, self._audience = line, tokenizer, audience
        self._clock = clock
        self._taken: deque[FrameReply] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether everything taken is written."""
        return not self._taken

    def write(self, socket: Socket, session: CallSession) -> bool:
        """Send some replies in one write; true when more are ready and can go."""
        if socket.is_congested():
            return False
        if not self._taken:
            self._taken.extend(session.take())
        self._write_some(socket, session, REPLIES_A_TURN)
        return bool(self._taken)

    def write_taken(self, socket: Socket, session: CallSession) -> None:
        """Send the replies that were taken before."""
        self._write_some(socket, session, len(self._taken))

    def _write_some(self, socket: Socket, session: CallSession, most: int) -> None:
        sent = [self._taken.popleft() for _ in range(min(most, len(self._taken)))]
        if not sent:
            return
        socket.write(b"".join(part for reply in sent for part in self._frames_of(reply)))
        now_s = self._clock()
        for reply in sent:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))

    def _frames_of(self, reply: FrameReply) -> list[bytes]:
        """Audio, then the text that is spoken in it."""
        audience, span = self._audience, self._line.span_ms(reply)
        parts: list[bytes] = []
        if (said := self._line.say(reply)) is not None:
            parts.append(audience.framed(events.OutputAudio(said.data)))
            if audience.watchers:
                audience.show(events.OutputAudio(s16le_from_float(said.pcm), *span))
        if reply.text_token is not None and self._tokenizer is not None:
            text = self._tokenizer.piece(reply.text_token)
            if text:
                self.words += text.startswith(" ")
                transcript = events.OutputTranscript(text, *span)
                parts.append(audience.framed(transcript))
                audience.show(transcript)
        return parts

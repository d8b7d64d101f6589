"""OpenAI's translation sessions: the model translates its input continuously, without turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from antiphon.audio.codecs import WireFormat
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.protocol import translation
from antiphon.protocol.event_text import text_of
from antiphon.protocol.realtime import AppendAudio, Update
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.translation import TranslationSession
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, Close, HelloFacts, Policy, PushAudio, Send
from antiphon.serve.dialects.event_audio import EventAudio, decoded
from antiphon.serve.dialects.realtime_client import RealtimeClient
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

DRAIN_S: Final = 10.0
"""Seconds that a translation may continue after ``session.close``."""

LAG_S: Final = 3.0
"""Seconds that a translation lags behind its input; shorter silence is not its end."""


class TranslationDialect(Dialect[FrameReply]):
    """One translation session: client events to actions, replies to server events."""

    policy = Policy(expects_input=False, has_answers=True)

    def __init__(self, session: TranslationSession, model: ServedModel) -> None:
        """Prepare ``session``."""
        super().__init__()
        self.tokenizer = model.tokenizer
        self._session, self._client = session, RealtimeClient()
        self._spec = model.engine.info.spec
        self._line = DuplexLine(WireFormat("pcm_s16le", translation.SAMPLE_RATE), self._spec)
        self._audio = EventAudio("session.update")
        self._is_begun = self._is_closing = False

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._decode()
        asked = translation.decode(text_of(message))
        match asked:
            case AppendAudio():
                return self._hear(asked)
            case Update():
                self._session = translation.change(self._session, asked.session)
                self._audio.renew()
                return (Send(event("session.updated", session=self._shown())),)
            case translation.Close():
                self._is_closing = True
                return (Close(DRAIN_S, LAG_S),)

    def _hear(self, asked: AppendAudio) -> Sequence[Action]:
        is_file = self._audio.is_file(asked.audio, asked.event_id)
        if is_file or not self._is_begun or self._is_closing:
            return ()
        self._line.decoder.put(asked.audio)
        return self._decode(asked.event_id)

    def _decode(self, event_id: str | None = None) -> Sequence[Action]:
        pcm = decoded(self._line.decoder, event_id)
        self.has_more = self._line.decoder.has_more
        return (PushAudio(pcm, pcm.size / self._spec.sample_rate),)

    def hello(self, _facts: HelloFacts) -> Sequence[Message]:
        self._is_begun = True
        return self.encode(event("session.created", session=self._shown()))

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        elapsed_ms, _ = self._line.span_ms(reply)
        events: list[Event] = []
        if (said := self._line.say(reply)) is not None:
            events.append(translation.output_audio(said.data, elapsed_ms))
        self.is_speaking = self._line.is_speaking
        if text := self.text_of(reply):
            events.append(translation.output_transcript(text, elapsed_ms))
        return self._client.written(*events)

    def encode(self, event: Event) -> Sequence[Message]:
        return self._client.written(event)

    def _shown(self) -> dict[str, object]:
        return self._session.shown(session_id=self._client.session_id, expires_at=self._client.expires_at)

    def finish(self, _stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        return self.encode(event("session.closed")), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self.encode(error_event(error)), wire_form(error).openai_close

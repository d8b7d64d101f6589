"""Transcription sessions of OpenAI Realtime: audio in, the words of each turn out. Nothing is dropped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from antiphon.audio.codecs import make_decoder
from antiphon.audio.vad import SpeechDetector, SpeechStarted
from antiphon.errors import AntiphonError, FieldError
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import realtime
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.realtime_input import InputTurns
from antiphon.protocol.realtime_session import RealtimeSession, change
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.transcriber import AsrNews
from antiphon.serve.calls.values import Action, HelloFacts, Policy, PushAudio, Send
from antiphon.serve.dialects.event_audio import EventAudio, decoded, line_of
from antiphon.serve.dialects.realtime_client import RealtimeClient, rules_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message


class TranscriptionDialect(Dialect[AsrNews]):
    """One transcription session of OpenAI Realtime."""

    policy = Policy(is_live=False, expects_input=False, has_answers=True)

    def __init__(
        self,
        session: RealtimeSession,
        model: ServedModel,
        is_own: Callable[[str], bool],
        *,
        has_tracks: bool = False,
    ) -> None:
        """Prepare ``session``; ``is_own`` returns whether a name belongs to this model.

        ``has_tracks``: audio and events use separate channels.
        """
        super().__init__()
        self._client, self._is_own = RealtimeClient(has_tracks=has_tracks), is_own
        self._session = session = self._client.settled(session)
        self._rate = model.engine.info.spec.sample_rate
        self._turns = InputTurns(self._client.ids, self._client.items, has_transcript=True)
        self._detector = SpeechDetector(self._rate, rules_of(session.detection))
        self._decoder = make_decoder(line_of(session.input_format), self._rate)
        self._audio = EventAudio("input_audio_buffer.clear or session.update")
        self._numbers = itertools.count(1)
        self.is_quiet = session.detection is None

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        return self.encode([event("session.created", session=self._client.shown(self._session))])

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._decode()
        asked = self._client.read(message)
        match asked:
            case realtime.AppendAudio():
                return self._hear(asked)
            case realtime.Update():
                return (Send(self._update(asked)),)
            case realtime.Commit():
                committed = self._turns.commit(self._detector.now_ms, asked.event_id)
                self._detector.reset()
                return (Send(self._end_turn(committed)),)
            case realtime.Clear():
                self._audio.renew()
                self._detector.reset()
                return (Send(self._turns.clear()),)
            case realtime.CreateItem() | realtime.RetrieveItem() | realtime.DeleteItem():
                return (Send(self._client.change_items(asked)),)
            case _:
                words = "type is for conversations, and this is a transcription session"
                raise FieldError(words, param="type", code="unsupported_event", event_id=asked.event_id)

    def _hear(self, asked: realtime.AppendAudio) -> Sequence[Action]:
        if self._audio.is_file(asked.audio, asked.event_id):
            return ()
        self._decoder.put(asked.audio)
        return self._decode(asked.event_id)

    def _decode(self, event_id: str | None = None) -> Sequence[Action]:
        pcm = decoded(self._decoder, event_id)
        self._turns.appended()
        self.has_more = self._decoder.has_more
        events: list[Event] = []
        for found in self._detector.feed(pcm):
            if self._session.detection is None:
                continue
            if isinstance(found, SpeechStarted):
                events += self._turns.started(found.ms)
            else:
                events += self._end_turn(self._turns.stopped(found.ms))
        pushed = PushAudio(pcm, pcm.size / self._rate)
        return (pushed, Send(events)) if events else (pushed,)

    def _end_turn(self, committed: list[Event]) -> list[Event]:
        """End a turn: the marker returns when all of its words are transcribed."""
        if committed:
            self.marks.append(next(self._numbers))
        return committed

    def _update(self, asked: realtime.Update) -> list[Event]:
        before, after = self._session, self._client.settled(change(self._session, asked.session))
        named = after.transcription_model
        if named is not None and not self._is_own(named):
            raise FieldError(
                f"session.audio.input.transcription.model is {named!r}, and this session's is "
                f"{before.model!r}: another one is named in the query or in the path",
                param="session.audio.input.transcription.model",
                code="model_not_found",
                event_id=asked.event_id,
            )
        self._audio.renew()
        if before.input_format != after.input_format:
            self._decoder = make_decoder(line_of(after.input_format), self._rate)
        if before.detection != after.detection:
            self._detector.rules = rules_of(after.detection)
            self._detector.reset()
        self._session = after
        self.is_quiet = after.detection is None  # the client decides when a turn begins
        return [event("session.updated", session=self._client.shown(after))]

    def messages(self, reply: AsrNews) -> Sequence[Message]:
        events: list[Event] = []
        for told in reply.events:
            if isinstance(told, Word):
                events += self._turns.word(told.text)
                if cut := self._turns.cut(self._detector.now_ms):
                    self._detector.reset()
                    events += self._end_turn(cut)
            elif isinstance(told, Marked):
                events += self._turns.transcribed()
        return self.encode(events)

    def encode(self, event: Sequence[Event]) -> Sequence[Message]:
        return self._client.written(*event)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self._client.written(error_event(error)), wire_form(error).openai_close

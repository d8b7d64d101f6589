"""The protocol of OpenAI Realtime for a full-duplex model, which has no turns of its own.

The model processes and sends audio all the time. :mod:`antiphon.protocol.realtime_reply` makes responses from
its output, and :mod:`antiphon.protocol.realtime_input` makes turns from its input. The client learns of the
caller's speech, which does not cut a response.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from antiphon.audio.pcm import FloatArray
from antiphon.audio.vad import SpeechDetector, SpeechStarted
from antiphon.errors import AntiphonError, FieldError, SessionTimeoutError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.models.prompt import Prompt
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import realtime
from antiphon.protocol.live_events import Info
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.realtime_input import InputTurns
from antiphon.protocol.realtime_reply import ReplyRules, ResponseRequest, Responses
from antiphon.protocol.realtime_session import RealtimeSession, change
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.captions import Captions
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, HelloFacts, Policy, PushAudio, ReadPrompt, Send, Transcribe
from antiphon.serve.dialects.event_audio import EventAudio, decoded, line_of
from antiphon.serve.dialects.realtime_client import RealtimeClient, rules_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

SETTLE_S: Final = 1.0
"""Seconds to wait for the client's first event, which may set the persona."""

ITS_INPUT: Final = "answers only audio from input_audio_buffer.append"
"""The reason in the status of a response to an item, of text or of audio, which fails."""

MAX_OWED: Final = 8
"""Maximum number of changes that wait for the model to be ready; a client makes two or three before that."""

PromptMaker: TypeAlias = Callable[[str, str | None, str | None], Awaitable[Prompt | None]]
"""Makes a prompt from instructions and a voice, for the event with an id."""


class RealtimeDialect(Dialect[FrameReply]):
    """OpenAI's Realtime protocol for one session with a duplex model."""

    policy = Policy(expects_input=False, has_answers=True, hears=True)

    def __init__(
        self,
        session: RealtimeSession,
        model: ServedModel,
        *,
        prompt_of: PromptMaker,
        captions_of: Callable[[str], tuple[Captions, str] | None],
        rules: ReplyRules | None = None,
        has_tracks: bool = False,
    ) -> None:
        """Prepare ``session``; ``rules`` define when a response ends, ``captions_of`` finds a recogniser.

        ``has_tracks``: audio and events use separate channels.
        """
        super().__init__()
        self.tokenizer = model.tokenizer
        self.listens_at_s = math.inf  # the model waits for its persona until then
        self._client = client = RealtimeClient(has_tracks=has_tracks)
        self._session = session = client.settled(session)
        self._prompt_of, self._captions_of = prompt_of, captions_of
        self._name, self._spec = model.name, model.engine.info.spec
        spec = self._spec
        self._line = DuplexLine(line_of(session.input_format), spec, line_of(session.output.format))
        self._replies = Responses(
            client.ids, client.items, session.output, frame_ms=round(spec.frame_ms), rules=rules
        )
        self._turns = InputTurns(client.ids, client.items)
        self._audio = EventAudio("input_audio_buffer.clear or session.update")
        self._detector = SpeechDetector(spec.sample_rate, rules_of(session.detection))
        self._numbers = itertools.count(1)
        self._is_begun = self._is_listening = self._has_captions = False
        self._has_unread = False  # the client has added an item, without speech since
        self._owed = 0  # changes that are not confirmed yet
        self.is_quiet = session.detection is None  # the client sends nothing between its turns

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._decode()
        asked = self._client.read(message)
        self.listens_at_s = 0.0
        match asked:
            case realtime.AppendAudio():
                return self._hear(asked)
            case realtime.Update():
                return self._update(asked)
            case realtime.CreateResponse():
                return (Send(self._replies.create(self._wish(asked))),)
            case realtime.CreateItem():
                created = self._client.change_items(asked)
                self._has_unread |= asked.item.get("role") != "assistant"
                return (Send(created),)
            case realtime.CancelResponse():
                return (Send(self._replies.cancel(asked.response_id, asked.event_id)),)
            case realtime.Commit():
                self._detector.reset()
                return (Send(self._end_turn(self._turns.commit(self._detector.now_ms, asked.event_id))),)
            case realtime.Clear():
                self._audio.renew()
                return (Send(self._turns.clear()),)
            case realtime.TruncateItem():
                place = {"content_index": asked.content_index, "audio_end_ms": asked.audio_end_ms}
                return (Send([event("conversation.item.truncated", item_id=asked.item_id, **place)]),)
            case realtime.Unsupported() if self._client.has_tracks:
                return (Send(self._replies.cancel(None, None)),) if self._replies.has_spoken else ()
            case realtime.Unsupported():
                words = f"type is {asked.type}, which is for WebRTC and SIP"
                raise FieldError(words, param="type", code="unsupported_event", event_id=asked.event_id)
            case _:
                return (Send(self._client.change_items(asked)),)

    def _hear(self, asked: realtime.AppendAudio) -> Sequence[Action]:
        if self._audio.is_file(asked.audio, asked.event_id) or not self._is_begun:
            return ()
        self._line.decoder.put(asked.audio)
        return self._decode(asked.event_id)

    def _decode(self, event_id: str | None = None) -> Sequence[Action]:
        pcm = decoded(self._line.decoder, event_id)
        self._turns.appended()
        self.has_more = self._line.decoder.has_more
        return (PushAudio(pcm, pcm.size / self._spec.sample_rate),)

    def _wish(self, asked: realtime.CreateResponse) -> ResponseRequest:
        output = self._session.output
        if asked.modalities:
            output = replace(output, modalities=asked.modalities)
        unread, self._has_unread = [*asked.unread, *["items"] * self._has_unread], False
        refusal = f"{', '.join(unread)}: the model {self._name} {ITS_INPUT}" if unread else ""
        return ResponseRequest(asked.metadata, output, refusal)

    def _update(self, asked: realtime.Update) -> Sequence[Action]:
        before, after = self._session, self._client.settled(change(self._session, asked.session))
        self._audio.renew()
        if self._is_listening and after.output.voice != before.output.voice:
            after = replace(after, output=replace(after.output, voice=before.output.voice))  # voice is fixed
        if (before.input_format, before.output.format) != (after.input_format, after.output.format):
            self._line.set_formats(line_of(after.input_format), line_of(after.output.format))
        if before.detection != after.detection:
            self._detector.rules = rules_of(after.detection)
            if after.detection is None:
                self._detector.reset()
        self.is_quiet = after.detection is None
        actions: list[Action] = []
        if after.transcription is not None and (found := self._captions_of(after.transcription_model or "")):
            captions, name = found
            after = replace(after, transcription={**after.transcription, "model": name})
            if not self._has_captions:
                self._has_captions = True
                actions.append(Transcribe(captions, self._turns.transcribe))
        self._session, self._replies.output = after, after.output
        if not self._is_listening:
            actions.append(ReadPrompt(lambda: self._prompt(after, asked.event_id)))
        return (*actions, Send(None))

    async def _prompt(self, session: RealtimeSession, event_id: str | None) -> Prompt | None:
        """Set the model's persona, unless it has processed audio by then."""
        prompt = await self._prompt_of(session.instructions, session.output.voice, event_id)
        return None if self._is_listening else prompt

    def _end_turn(self, committed: list[Event]) -> list[Event]:
        """End the current turn, if any: its transcript ends here."""
        if committed:
            self._has_unread = False
        if committed and self._has_captions:
            self.marks.append(next(self._numbers))
        return committed

    def caption(self, told: Word | Marked | Info) -> Sequence[Action]:
        if isinstance(told, Marked):
            return (Send(self._turns.transcribed()),)
        if isinstance(told, Info):
            self._has_captions = False  # the next update requests them again
            return (Send(self._turns.failed(told.message)),)
        events = self._turns.word(told.text)
        if cut := self._turns.cut(self._detector.now_ms):
            self._detector.reset()
            events += self._end_turn(cut)
        return (Send(events),)

    def heard(self, pcm: FloatArray) -> Sequence[Action]:
        detection, events = self._session.detection, list[Event]()
        for found in self._detector.feed(pcm):
            if detection is None:
                continue
            if isinstance(found, SpeechStarted):
                events += self._turns.started(found.ms)
                if detection.interrupt_response:
                    events += self._replies.interrupted()
            else:
                events += self._end_turn(self._turns.stopped(found.ms))
        return (Send(events),) if events else ()

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self._is_begun = True
        self.listens_at_s = min(self.listens_at_s, facts.now_s + SETTLE_S)
        conversation = {"id": self._replies.conversation, "object": "realtime.conversation"}
        created = event("session.created", session=self._client.shown(self._session))
        return self.encode([created, event("conversation.created", conversation=conversation)])

    def listening(self) -> Sequence[Message]:
        """Confirm changes now that the model is ready; clients wait for the confirmation before they send
        speech.
        """
        self._is_listening = True
        owed, self._owed = self._owed, 0
        return self.encode([self._updated()] * owed)

    def _updated(self) -> Event:
        return event("session.updated", session=self._client.shown(self._session))

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        said, text = self._line.say(reply), self.text_of(reply)
        self.is_speaking = self._line.is_speaking
        events: list[Event] = []
        if self.is_speaking and not self._replies.has_spoken and (stopped := self._detector.end()):
            events += self._end_turn(self._turns.stopped(stopped.ms))  # the model answers
        audio = b"" if said is None else said.data
        return self.encode(events + self._replies.frame(audio, is_speaking=self.is_speaking, text=text))

    def encode(self, event: Sequence[Event] | None) -> Sequence[Message]:
        """Encode events, or, for None, the confirmation of a change."""
        if event is None:
            if not self._is_listening:
                self._owed = min(self._owed + 1, MAX_OWED)
                return ()
            event = [self._updated()]
        return self._client.written(*event)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        error = SessionTimeoutError("the session has reached its limit of steps")
        return self.encode(self._replies.finish()), error

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self._client.written(error_event(error)), wire_form(error).openai_close

"""The protocol of Kyutai's Unmute with a voice agent: Ogg/Opus both ways, and the agent speaks first."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from antiphon.agent.history import HistoryEntry, Role
from antiphon.agent.values import (
    CANCELLED,
    INTERRUPTED,
    AgentNews,
    AskReply,
    Configure,
    PutEntry,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    ReplyText,
    ReplyWritten,
    TurnStarted,
    TurnStopped,
    WordHeard,
)
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.errors import AntiphonError, AudioError, FieldError
from antiphon.ipc.values import SessionStats
from antiphon.protocol import unmute
from antiphon.protocol.event_text import text_of
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.realtime_events import Event, Ids, encode, event
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, HelloFacts, Instruct, Policy, PushAudio, ReadPrompt, Send
from antiphon.serve.dialects.realtime_agent import SETTLE_S, VoiceMaker
from antiphon.serve.transport.transport import Message

FORMAT: Final = "ogg"

OPENING: Final = "Hello."
"""The first text for the text model: some models answer only to a user's text."""


class UnmuteDialect(Dialect[AgentNews]):
    """One session of Unmute with a voice agent. Its first ``session.update`` may name a voice, and requests a
    reply.
    """

    policy = Policy(expects_input=False, has_answers=True)

    def __init__(self, agent: AgentParts, *, voice_of: VoiceMaker) -> None:
        """Prepare."""
        super().__init__()
        self.listens_at_s = math.inf
        self._agent, self._voice_of = agent, voice_of
        self._settings, self._voice = agent.settings, agent.voice or ""
        self._rate = agent.stt.engine.info.spec.sample_rate
        self._decoder = make_decoder(FORMAT, self._rate)
        self._encoder = make_encoder(FORMAT, agent.tts.engine.info.spec.sample_rate)
        self._ids = Ids(secrets.token_hex(6))
        self._log = unmute.ChatLog()
        self._written: list[str] = []  # of the reply
        self._has_stream = self._is_listening = self._has_opened = self._is_new = False

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._hear()
        match unmute.decode(text_of(message)):
            case unmute.AppendAudio(audio):
                self._has_stream = self._has_stream or unmute.begins_stream(audio)
                if not self._has_stream:
                    return ()
                self._decoder.put(audio)
                return self._hear()
            case unmute.Update() as asked:
                return self._update(asked)
        return ()

    def _hear(self) -> Sequence[Action]:
        """Decode one step of the audio."""
        self.has_more = False
        try:
            pcm = self._decoder.step()
        except AudioError as error:
            self._decoder.clear()  # the message is rejected as a whole: none of its audio waits
            words = f"audio is no Ogg/Opus: {error}"
            raise FieldError(words, param="audio", code=INVALID_VALUE) from error
        self.has_more = pcm is not None and self._decoder.has_more
        return () if pcm is None or not pcm.size else (PushAudio(pcm, pcm.size / self._rate),)

    def _update(self, asked: unmute.Update) -> Sequence[Action]:
        self.listens_at_s = 0.0
        actions: list[Action] = []
        if asked.voice not in (None, self._voice) and not self._is_listening:
            speakers = self._agent.tts.speakers
            is_known = speakers is not None and asked.voice in speakers.names()
            self._voice = (asked.voice if is_known else self._agent.voice) or ""
            actions.append(ReadPrompt(lambda: self._voice_of(asked.voice)))
        if asked.instructions is not None:
            own = self._agent.settings.instructions
            self._settings = replace(self._settings, instructions=asked.instructions or own)
        actions += [Instruct(Configure(self._settings)), Send(unmute.session_updated(asked.session))]
        if not (self._has_opened or self._agent.greeting):
            actions.append(Instruct(PutEntry("opening", HistoryEntry(Role.USER, OPENING))))
            actions.append(Instruct(AskReply(self._settings)))
        self._has_opened = True
        return actions

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self.listens_at_s = min(self.listens_at_s, facts.now_s + SETTLE_S)
        return ()

    def listening(self) -> Sequence[Message]:
        self._is_listening = True
        return ()

    def messages(self, reply: AgentNews) -> Sequence[Message]:
        return [message for it in self._events(reply) for message in self.encode(it)]

    def _events(self, news: AgentNews) -> list[Event]:
        match news:
            case TurnStarted():
                self._is_new = True
                return [event("input_audio_buffer.speech_started")]
            case TurnStopped():
                return [event("input_audio_buffer.speech_stopped")]
            case WordHeard(text, ms):
                self._add("user", text)
                return [unmute.heard(text, ms)]
            case ReplyBegan():
                self._is_new, self.is_speaking, self._written = True, True, []
                return [unmute.outputs(self._log), unmute.response_created(self._voice, self._log)]
            case ReplyWritten(text, is_whole):
                return self._write(text, is_whole=is_whole)
            case ReplyText(_, text):
                self._add("assistant", text.strip())
                return [event("response.text.delta", delta=text.strip())]
            case ReplySound(_, pcm):
                return [event("response.audio.delta", delta=b"".join(self._encoder.encode(pcm)))]
            case ReplyOver(outcome, error):
                return self._end(outcome, error)
        return []

    def _add(self, role: str, words: str) -> None:
        self._log.add(role, words, is_new=self._is_new)
        self._is_new = False

    def _write(self, text: str, *, is_whole: bool) -> list[Event]:
        """Text of the text model; a space precedes each word but the first."""
        words = " ".join(text.split())
        if words:
            delta = f" {words}" if self._written else words
            self._written.append(delta)
            return [event("unmute.response.text.delta.ready", delta=delta)]
        return [event("response.text.done", text="".join(self._written))] if is_whole else []

    def _end(self, outcome: str, error: Exception | None) -> list[Event]:
        self.is_speaking = False
        if outcome == INTERRUPTED:
            return [event("unmute.interrupted_by_vad")]
        if outcome == CANCELLED:
            return []
        failed = [unmute.error_event(error)] if isinstance(error, AntiphonError) else []
        return [*failed, unmute.outputs(self._log), event("response.audio.done")]

    def encode(self, event: Event) -> Sequence[Message]:
        return (encode(event, self._ids.new("event")),)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        told = unmute.error_event(error, is_fatal=not isinstance(error, FieldError))
        return self.encode(told), wire_form(error).openai_close

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        self._decoder.close()
        self._encoder.close()

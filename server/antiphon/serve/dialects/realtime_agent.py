"""The protocol of OpenAI Realtime with a voice agent, in which turns, tools and items have an effect."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from antiphon.agent.history import HistoryEntry, Role
from antiphon.agent.turns import TurnRules
from antiphon.agent.values import (
    CANCELLED,
    COMPLETED,
    CUT,
    FAILED,
    INTERRUPTED,
    AgentNews,
    AgentSettings,
    AskReply,
    AudioHeard,
    CancelReply,
    Configure,
    EndTurn,
    ForgetTurn,
    PutEntry,
    RemoveEntry,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    ReplyText,
    ReplyWritten,
    ToolCalled,
    Truncate,
    TurnStarted,
    TurnStopped,
    TurnWritten,
    WordHeard,
)
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.errors import AntiphonError, FieldError
from antiphon.models.prompt import Prompt
from antiphon.protocol import realtime, realtime_response
from antiphon.protocol.fields import Fields
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.realtime_input import InputTurns
from antiphon.protocol.realtime_response import CLIENT_CANCELLED, TOO_LONG, TURN_DETECTED, Response
from antiphon.protocol.realtime_session import (
    Detection,
    OutputFormat,
    RealtimeSession,
    change,
)
from antiphon.protocol.realtime_tools import ReplyFields, WrittenItem, read_item, refuse_second, reply_fields
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, HelloFacts, Instruct, Policy, PushAudio, ReadPrompt, Send
from antiphon.serve.dialects.event_audio import EventAudio, decoded, line_of
from antiphon.serve.dialects.realtime_client import RealtimeClient
from antiphon.serve.transport.transport import Message

SETTLE_S: Final = 1.0
"""Seconds to wait for the client's first event, which may set the synthesiser's voice."""

ROLES: Final[Mapping[str, Role]] = {
    "system": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "call": Role.CALL,
    "output": Role.OUTPUT,
}

OUTCOMES: Final[Mapping[str, tuple[str, str | None]]] = {
    COMPLETED: (realtime_response.COMPLETED, None),
    INTERRUPTED: (realtime_response.CANCELLED, TURN_DETECTED),
    CANCELLED: (realtime_response.CANCELLED, CLIENT_CANCELLED),
    CUT: (realtime_response.INCOMPLETE, TOO_LONG),
    FAILED: (realtime_response.FAILED, None),
}
"""Status and reason of a response, by the outcome of a reply."""

VoiceMaker: TypeAlias = Callable[[str | None], Awaitable[Prompt | None]]
"""Makes a synthesiser's prompt for a voice; an unknown voice is replaced."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The parameters of a client's ``response.create`` that apply to the response itself."""

    output: OutputFormat
    metadata: Mapping[str, str] | None


class AgentDialect(Dialect[AgentNews]):
    """One session of OpenAI Realtime with a voice agent; ``client`` makes ids for its turns and replies."""

    policy = Policy(expects_input=False, has_answers=True)

    def __init__(
        self, session: RealtimeSession, parts: AgentParts, *, voice_of: VoiceMaker, has_tracks: bool = False
    ) -> None:
        """Prepare ``session``; ``has_tracks``: audio and events use separate channels.

        Raises:
            FieldError: its tools cannot be read.
        """
        super().__init__()
        self.client = RealtimeClient(has_tracks=has_tracks)
        session = self.client.settled(session)
        self.listens_at_s = math.inf
        self.is_quiet = session.detection is None
        self._session, self._parts, self._voice_of = session, parts, voice_of
        self._rate, self._said_rate = (model.engine.info.spec.sample_rate for model in (parts.stt, parts.tts))
        self._decoder = make_decoder(line_of(session.input_format), self._rate)
        self._encoder = make_encoder(line_of(session.output.format), self._said_rate)
        self._audio = EventAudio("input_audio_buffer.clear or session.update")
        self._turns = InputTurns(self.client.ids, self.client.items, has_transcript=True)
        self._conversation = self.client.ids.new("conv")
        self._response: Response | None = None
        self._is_asked = self._is_listening = False
        self._samples = 0
        self.settings = self._settings(reply_fields(session))

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._decode()
        asked = self.client.read(message, has_tools=True)
        self.listens_at_s = 0.0
        match asked:
            case realtime.AppendAudio():
                return self._hear(asked)
            case realtime.Update():
                return self._update(asked)
            case realtime.CreateResponse():
                return self._create(asked)
            case realtime.CreateItem():
                return self._put(asked)
            case realtime.RetrieveItem():
                return (Send(self.client.change_items(asked)),)
            case realtime.DeleteItem(item_id):
                return (Send(self.client.change_items(asked)), Instruct(RemoveEntry(item_id)))
            case realtime.TruncateItem(item_id, index, end_ms):
                place = {"content_index": index, "audio_end_ms": end_ms}
                truncated = event("conversation.item.truncated", item_id=item_id, **place)
                return (Instruct(Truncate(item_id, end_ms)), Send([truncated]))
            case realtime.CancelResponse():
                return self._cancel(asked)
            case realtime.Commit():
                committed = self._turns.commit(self._now_ms, asked.event_id)
                return (Send(committed), Instruct(EndTurn(committed[0].fields["item_id"])))
            case realtime.Clear():
                self._audio.renew()
                return (Instruct(ForgetTurn()), Send(self._turns.clear()))
            case realtime.Unsupported() if self.client.has_tracks:
                return () if self._response is None else (Instruct(CancelReply()),)
            case realtime.Unsupported():
                words = f"type is {asked.type}, which is for WebRTC and SIP"
                raise FieldError(words, param="type", code="unsupported_event", event_id=asked.event_id)

    @property
    def _now_ms(self) -> int:
        return 1000 * self._samples // self._rate

    def _hear(self, asked: realtime.AppendAudio) -> Sequence[Action]:
        if self._audio.is_file(asked.audio, asked.event_id):
            return ()
        self._decoder.put(asked.audio)
        return self._decode(asked.event_id)

    def _decode(self, event_id: str | None = None) -> Sequence[Action]:
        pcm = decoded(self._decoder, event_id)
        self._turns.appended()
        self.has_more = self._decoder.has_more
        self._samples += pcm.size
        return (PushAudio(pcm, pcm.size / self._rate),)

    def _update(self, asked: realtime.Update) -> Sequence[Action]:
        before, after = self._session, self.client.settled(change(self._session, asked.session))
        settings = self._settings(reply_fields(after), after)
        self._audio.renew()
        if self._is_listening and after.output.voice != before.output.voice:
            after = replace(after, output=replace(after.output, voice=before.output.voice))  # voice is fixed
        if before.input_format != after.input_format:
            self._decoder = make_decoder(line_of(after.input_format), self._rate)
        if before.output.format != after.output.format:
            self._encoder = make_encoder(line_of(after.output.format), self._said_rate)
        self._session, self.settings = after, settings
        self.is_quiet = after.detection is None
        actions: list[Action] = [Instruct(Configure(settings)), Send([self._event("session.updated")])]
        if not self._is_listening and after.output.voice not in (None, before.output.voice):
            actions.insert(0, ReadPrompt(lambda: self._voice_of(after.output.voice)))
        return actions

    def _settings(self, fields: ReplyFields, session: RealtimeSession | None = None) -> AgentSettings:
        session, own = session or self._session, self._parts.settings
        detection = session.detection
        return replace(
            own,
            instructions=fields.instructions or own.instructions,
            max_tokens=min(own.max_tokens, fields.max_tokens or own.max_tokens),
            tools=fields.tools,
            tool_choice=fields.tool_choice,
            parallel_tool_calls=fields.parallel_tool_calls,
            has_sound=session.output.has_audio,
            turns=_rules(detection, own.turns),
            level_dbfs=own.level_dbfs if detection is None else detection.level_dbfs,
        )

    def _create(self, asked: realtime.CreateResponse) -> Sequence[Action]:
        if self._response is not None or self._is_asked:
            raise refuse_second(asked.event_id)
        fields, output = reply_fields(self._session, asked.response), self._session.output
        output = replace(output, modalities=asked.modalities) if asked.modalities else output
        entries = None if fields.input is None else [entry_of(it) for it in fields.input]
        settings = replace(self._settings(fields), has_sound=output.has_audio)
        self._is_asked = True
        wish = AskReply(settings, entries, is_apart=fields.is_apart, tag=Wish(output, asked.metadata))
        return (Instruct(wish),)

    def _put(self, asked: realtime.CreateItem) -> Sequence[Action]:
        entry = entry_of(read_item(Fields(asked.item, "item", asked.event_id)))
        created = self.client.change_items(asked)
        name = created[0].fields["item"]["id"]
        after = "" if asked.previous == "root" else asked.previous
        assert isinstance(entry, HistoryEntry)
        return (Instruct(PutEntry(name, entry, after)), Send(created))

    def _cancel(self, asked: realtime.CancelResponse) -> Sequence[Action]:
        response = self._response
        is_none = response is None and not self._is_asked
        if is_none or (response is not None and asked.response_id not in (None, response.id)):
            raise FieldError(
                "Cancellation failed: no active response found",
                param="response_id",
                code="response_cancel_not_active",
                event_id=asked.event_id,
            )
        self._is_asked = False
        return (Instruct(CancelReply()),)

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self.listens_at_s = min(self.listens_at_s, facts.now_s + SETTLE_S)
        conversation = {"id": self._conversation, "object": "realtime.conversation"}
        return self.encode(
            [self._event("session.created"), event("conversation.created", conversation=conversation)]
        )

    def listening(self) -> Sequence[Message]:
        self._is_listening = True
        return ()

    def _event(self, kind: str) -> Event:
        return event(kind, session=self.client.shown(self._session))

    def messages(self, reply: AgentNews) -> Sequence[Message]:
        return self.encode(self._events(reply))

    def _events(self, news: AgentNews) -> list[Event]:
        match news:
            case TurnStarted(item, ms):
                return self._turns.started(ms, item)
            case TurnStopped(ms):
                return self._turns.stopped(ms)
            case WordHeard(text):
                return self._transcribed(self._turns.word(text))
            case TurnWritten():
                return self._transcribed(self._turns.transcribed())
            case ReplyBegan(asked):
                return self._begin(asked)
            case ReplyWritten():
                return []  # each word is sent when it is spoken
            case ReplyOver():
                return self._end(news)
            case AudioHeard():
                return []
        response = self._response
        assert response is not None
        match news:
            case ReplyText(item, text):
                begun = response.begin_message(item) if response.item is None else []
                return [*begun, response.text(text)]
            case ReplySound(item, pcm):
                begun = response.begin_message(item) if response.item is None else []
                return [*begun, response.audio(b"".join(self._encoder.encode(pcm)))]
            case ToolCalled(item, call_id, name, pieces):
                ended = response.end_message(is_whole=True)
                return [*ended, *response.tool_call(item, call_id, name, pieces)]

    def _transcribed(self, events: list[Event]) -> list[Event]:
        """The transcript, for clients that have requested one."""
        return [] if self._session.transcription is None else events

    def _begin(self, asked: AskReply | None) -> list[Event]:
        tag = None if asked is None else asked.tag
        wish = tag if isinstance(tag, Wish) else Wish(self._session.output, None)
        is_apart = asked is not None and asked.is_apart
        ids, items = self.client.ids, self.client.items
        self._response = Response(
            ids, items, self._conversation, wish.output, wish.metadata, is_apart=is_apart
        )
        self._is_asked, self.is_speaking = False, True
        return [self._response.created()]

    def _end(self, over: ReplyOver) -> list[Event]:
        response, self._response = self._response, None
        self.is_speaking = False
        if response is None:
            return []
        status, reason = OUTCOMES[over.outcome]
        details: dict[str, Any] | None = None if over.outcome == COMPLETED else {"type": status}
        if reason is not None and details is not None:
            details["reason"] = reason
        if details is not None and isinstance(over.error, AntiphonError):
            kind, code = wire_form(over.error).in_events
            details["error"] = {"type": kind, "code": code, "message": str(over.error)}
        ended = response.end_message(is_whole=over.outcome == COMPLETED)
        return [*ended, response.done(status, details, _usage(over))]

    def encode(self, event: Sequence[Event]) -> Sequence[Message]:
        return self.client.written(*event)

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self.client.written(error_event(error)), wire_form(error).openai_close


def _rules(detection: Detection | None, own: TurnRules) -> TurnRules:
    """The settings of turn detection."""
    if detection is None:
        return replace(own, is_manual=True)
    return replace(
        own,
        silence_ms=detection.silence_ms,
        suspect_ms=min(own.suspect_ms, detection.silence_ms),
        creates=detection.create_response,
        interrupts=detection.interrupt_response,
        idle_ms=detection.idle_timeout_ms or own.idle_ms,
    )


def entry_of(item: str | WrittenItem) -> str | HistoryEntry:
    """An item as a history entry; its id is kept."""
    if isinstance(item, str):
        return item
    return HistoryEntry(ROLES[item.role], item.text, call_id=item.call_id, name=item.name)


def _usage(over: ReplyOver) -> dict[str, Any] | None:
    """The text model's tokens in the API's form; None if it reported none."""
    read, written = over.tokens_in, over.tokens_out
    if not (read or written):
        return None
    return {
        "total_tokens": read + written,
        "input_tokens": read,
        "output_tokens": written,
        "input_token_details": {"text_tokens": read, "audio_tokens": 0, "cached_tokens": 0},
        "output_token_details": {"text_tokens": written, "audio_tokens": 0},
    }

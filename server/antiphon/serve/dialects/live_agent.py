"""The protocol of OpenAI Live with a voice agent: continuous sound, delegation as tools, text as history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

import numpy as np

from antiphon.agent.history import HistoryEntry, Role
from antiphon.agent.values import (
    INTERRUPTED,
    AgentNews,
    AgentSettings,
    AskReply,
    AudioHeard,
    Configure,
    PutEntry,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    ReplyText,
    ToolCalled,
    WordHeard,
)
from antiphon.audio.codecs import make_decoder, make_encoder
from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.errors import AntiphonError, ReplacedError
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.live_delegation import DELEGATE, Delegation, Target, read_delegation
from antiphon.protocol.live_session import LiveFormat, SessionChange, SessionConfig
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.local_resume import LocalResume, Recent
from antiphon.serve.calls.values import Action, HelloFacts, Instruct, Policy, Send
from antiphon.serve.dialects.event_audio import line_of
from antiphon.serve.dialects.live import LiveClient, refusal
from antiphon.serve.dialects.realtime_agent import entry_of
from antiphon.serve.transport.transport import Message

LATE_FRAMES: Final = 2
"""Frames to wait for the next sound of a reply before silence replaces it."""

SILENT_FRAMES_A_TURN: Final = 12
MAX_SILENT_FRAMES: Final = 125
"""Maximum number of frames of silence that are sent in one turn (two milliseconds of work), and that are kept
for a client that does not read. Older ones are dropped.
"""

ROLES: Final[Mapping[str, Role]] = {
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}

MAX_DELEGATIONS: Final = 64
"""Maximum number of delegations that wait for the client; above it the oldest delegation is dropped."""


class Delegated:
    """The tool calls of one reply, as a response of the Responses API; ``response`` is its id."""

    def __init__(self, delegation: str, response: str) -> None:
        """Start without a call."""
        self.delegation, self.response = delegation, response
        self._events = self._items = 0

    def event(self, kind: str, **fields: Any) -> events.ResponseEvent:
        """The next event of the response."""
        told = {"type": f"response.{kind}", "sequence_number": self._events, **fields}
        self._events += 1
        return events.ResponseEvent(told, self.delegation)

    def shown(self, status: str) -> dict[str, Any]:
        """Return the response without its output, which has separate events."""
        return {"id": self.response, "object": "response", "status": status, "output": []}

    def tool_call(self, call: ToolCalled) -> list[events.ResponseEvent]:
        """The events of one tool call."""
        arguments, place = "".join(call.pieces), {"output_index": self._items}
        self._items += 1
        named = {"item_id": call.item, "name": call.name, "arguments": arguments}
        item = {"id": call.item, "type": "function_call", "call_id": call.call_id, "name": call.name}
        whole = {**item, "arguments": arguments, "status": "completed"}
        return [
            self.event(
                "output_item.added", **place, item={**whole, "arguments": "", "status": "in_progress"}
            ),
            self.event("function_call_arguments.done", **place, **named),
            self.event("output_item.done", **place, item=whole),
        ]


class LiveAgentDialect(LiveClient, Dialect[AgentNews]):
    """One session of OpenAI Live with a voice agent, with these ``settings``; ``new_id`` makes ids for its
    history.
    """

    policy = Policy(expects_input=False, has_answers=True)
    has_text = True

    def __init__(
        self,
        start: live.Start,
        agent: AgentParts,
        *,
        notices: Sequence[events.Info] = (),
        resume: LocalResume | None = None,
    ) -> None:
        """Prepare. ``notices`` report fields without effect.

        Raises:
            FieldError: a tool is not a function.
        """
        self._resume, self._own = resume, agent.settings
        self._said = agent.tts.engine.info.spec
        numbers = None if resume is None else resume.sequence
        super().__init__(start, agent.name, agent.stt.engine.info.spec, notices=notices, numbers=numbers)
        self._set_format(start.session.format)
        self._ids = count()
        self._frames = self._heard_samples = 0  # sent and received
        self._recent = Recent(self._said.frame_ms)
        self._is_sounding = self._has_text = False
        self._waiting: dict[str, str] = {}  # calls of the text model, by the delegation to the client
        self._responses: Delegated | None = None  # calls of this reply that are delegated to Responses
        self._delegation = read_delegation(start.session.delegation, start.event_id)
        self.settings = self._settings(self.config, self._delegation)

    def new_id(self, kind: str) -> str:
        """An id that is unique in the session; ``kind`` is its prefix."""
        return f"{kind}_{next(self._ids)}"

    @property
    def history(self) -> list[PutEntry]:
        """The entries of the conversation before this session, as the client sent them."""
        told = [HistoryEntry(ROLES[it.role], it.text) for it in self.config.history]
        return [PutEntry(self.new_id("item"), entry) for entry in told]

    def _set_format(self, audio: LiveFormat) -> None:
        line = line_of(audio)
        self.decoder = make_decoder(line, self.spec.sample_rate)
        self._encoder = make_encoder(line, self._said.sample_rate)

    def _settings(self, config: SessionConfig, delegation: Delegation) -> AgentSettings:
        own = self._own
        instructions = config.instructions or own.instructions, delegation.instructions
        return replace(
            own,
            instructions="\n\n".join(filter(None, instructions)),
            max_tokens=min(own.max_tokens, delegation.max_tokens or own.max_tokens),
            tools=delegation.tools,
            tool_choice=delegation.tool_choice,
            parallel_tool_calls=delegation.parallel_tool_calls,
        )

    # From the client.

    def change(self, change: SessionChange, event_id: str | None) -> Sequence[Action]:
        before, after = self.config.delegation or {}, change.delegation
        if after is not None and before.get("type") == after.get("type"):
            kept = {**(before.get("responses") or {}), **(after.get("responses") or {})}
            change = replace(change, delegation={**before, **after, **({"responses": kept} if kept else {})})
        if change.delegation is not None:
            delegation = read_delegation(change.delegation, event_id)
            self.settings, self._delegation = self._settings(self.config, delegation), delegation
        super().change(change, event_id)
        return (Instruct(Configure(self.settings)),)

    def acknowledged(self, seq: int) -> Sequence[Action]:
        if self._resume is not None:
            self._resume.confirm(seq)
        return ()

    def follow_text(self, event: live.AppendText | live.AddItem | live.ContinueResponse) -> Sequence[Action]:
        if isinstance(event, live.AppendText):
            return self._append(event)
        if self._delegation.target is not Target.RESPONSES:
            words = "type is for sessions whose delegation is responses"
            raise refusal(words, "unsupported_event", event.event_id)
        if isinstance(event, live.ContinueResponse):
            return (Instruct(AskReply(self.settings)),)
        entry = entry_of(event.item)
        assert isinstance(entry, HistoryEntry)
        return (Instruct(PutEntry(self.new_id("item"), entry)),)

    def _append(self, event: live.AppendText) -> Sequence[Action]:
        """Text of the application: the result of a delegation, or context; commentary is spoken."""
        delegation, call_id = event.delegation_id, None
        if delegation is not None:
            if delegation not in self._waiting:
                words = f"delegation_id is {delegation!r}, and no delegation of that id waits for the client"
                raise refusal(words, INVALID_VALUE, event.event_id, "delegation_id")
            call_id = self._waiting[delegation]
        is_spoken, entry = event.kind == "commentary", HistoryEntry(Role.SYSTEM, event.content)
        if call_id is not None and delegation is not None and is_spoken:
            del self._waiting[delegation]
            entry = HistoryEntry(Role.OUTPUT, event.content, call_id=call_id)
        now_ms = self._heard_ms
        return (
            Instruct(PutEntry(self.new_id("item"), entry)),
            Send(events.TextAppended(event.kind, now_ms, now_ms, event.event_id)),
            *((Instruct(AskReply(self.settings)),) if is_spoken else ()),
        )

    # To the client.

    def greeting(self, facts: HelloFacts) -> Sequence[Message]:
        terms = None
        if self._resume is not None:
            terms = {**self._resume.terms(), "frame_ms": self._said.frame_ms}
        return self.encode(events.SessionStarted(self.shown(), self.start.event_id, terms))

    def resumed(self, again: live.ResumeSession) -> tuple[Sequence[Message], Sequence[Action]]:
        """Continue the session on another connection of the client."""
        assert self._resume is not None
        self.config = replace(self.config, format=again.session.format)
        self._set_format(again.session.format)
        self.is_quiet = again.is_muted
        input_frame = self.skip_to(again.claim.input_frame)
        first, missed, frames = self._recent.after(again.claim.frame, self._frames)
        event = events.SessionResumed(
            self.shown(),
            {**self._resume.terms(), "frame_ms": self._said.frame_ms},
            input_frame=input_frame,
            replay_from=first,
            missed_frames=missed,
            client_event_id=again.event_id,
        )
        lacking = [data.decode() for data in self._resume.sequence.after(again.claim.seq)]
        audio = [self._audio(pcm, frame) for frame, pcm in frames]
        sound = self._recent.replayed_sound(again.claim.frame, first)
        return [self.written(event), *lacking, *audio], [Instruct(sound)]

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        if isinstance(error, ReplacedError):  # of one connection: the session continues, with its watchers
            return (self.written(events.error_of(error)),), wire_form(error).openai_close
        return super().error(error)

    def messages(self, reply: AgentNews) -> Sequence[Message]:
        match reply:
            case AudioHeard(samples):
                self._heard_samples += samples
                return self._fill()
            case WordHeard(text, start_ms, end_ms):
                return self.encode(events.InputTranscript(f" {text}", start_ms, end_ms))
            case ReplyBegan():
                self.is_speaking, self._has_text = True, False
            case ReplySound(item, pcm):
                self._is_sounding = True
                return self._say(pcm, item)
            case ReplyText(_, text, length_ms):
                begins, self._has_text = not self._has_text, True
                end_ms = self._said_ms
                told = f" {text}" if begins else text
                return self.encode(events.OutputTranscript(told, max(0, end_ms - length_ms), end_ms))
            case ToolCalled():
                return [it for event in self._delegated(reply) for it in self.encode(event)]
            case ReplyOver():
                return self._end(reply)
        return ()

    def due(self, now_s: float) -> Sequence[Message]:
        return self._fill()

    def _fill(self) -> list[Message]:
        """Silence up to the length of the caller's audio; more follows at ``due_s``."""
        spared = LATE_FRAMES if self._is_sounding else 0
        due = int(self._heard_ms / self._said.frame_ms) - spared
        self._frames = max(self._frames, due - MAX_SILENT_FRAMES)
        end = min(due, self._frames + SILENT_FRAMES_A_TURN)
        self.due_s = -math.inf if end < due else math.inf
        silence = np.zeros(self._said.frame_samples, np.float32)
        return [it for _ in range(self._frames, end) for it in self._say(silence)]

    @property
    def _said_ms(self) -> int:
        return round(self._frames * self._said.frame_ms)

    @property
    def _heard_ms(self) -> int:
        return 1000 * self._heard_samples // self.spec.sample_rate

    def _say(self, pcm: FloatArray, item: str = "") -> list[Message]:
        frame, start_ms = self._frames, self._said_ms
        self._frames += 1
        self._recent.add(frame, pcm, item)
        if self.watchers:
            self.show(events.OutputAudio(s16le_from_float(pcm), start_ms, self._said_ms))
        return [self._audio(pcm, frame)]

    def _audio(self, pcm: FloatArray, frame: int) -> Message:
        number = None if self._resume is None else frame
        return self.written(events.OutputAudio(b"".join(self._encoder.encode(pcm)), frame=number))

    def _delegated(self, call: ToolCalled) -> list[events.ServerEvent]:
        """The events for a call of the text model."""
        if self._delegation.target is Target.CLIENT:
            if call.name != DELEGATE:
                return []
            delegation = self.new_id("delegation")
            self._waiting[delegation] = call.call_id
            if len(self._waiting) > MAX_DELEGATIONS:
                del self._waiting[next(iter(self._waiting))]
            return [self._created(delegation, Target.CLIENT)]
        told: list[events.ServerEvent] = []
        if self._responses is None:
            self._responses = Delegated(self.new_id("delegation"), self.new_id("resp"))
            created = self._created(
                self._responses.delegation, Target.RESPONSES, response_id=self._responses.response
            )
            told = [created, self._responses.event("created", response=self._responses.shown("in_progress"))]
        return [*told, *self._responses.tool_call(call)]

    def _created(self, delegation: str, target: Target, **fields: str) -> events.DelegationCreated:
        told = {"id": delegation, "type": "delegation", "target": target.value, **fields}
        return events.DelegationCreated(self._heard_ms, told)

    def _end(self, over: ReplyOver) -> Sequence[Message]:
        told: list[events.ServerEvent] = []
        if self._responses is not None:
            told.append(self._responses.event("completed", response=self._responses.shown("completed")))
        if isinstance(over.error, AntiphonError):
            told.append(events.error_of(over.error))
        if over.outcome == INTERRUPTED:
            self._recent.clear()
        self._responses, self.is_speaking, self._is_sounding = None, False, False
        return [it for event in told for it in self.encode(event)]

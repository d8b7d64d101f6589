"""The protocol of ``/api/chat`` with a voice agent: words and sound, and silence between replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from antiphon.agent.values import (
    INTERRUPTED,
    AgentNews,
    CancelReply,
    ReplyBegan,
    ReplyOver,
    ReplySound,
    ReplyText,
    ToolCalled,
    WordHeard,
)
from antiphon.audio.pcm import FloatArray
from antiphon.protocol import events, moshi
from antiphon.protocol.chat import ChatRequest
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.values import Action, HelloFacts, Instruct, Policy, PushAudio, Send
from antiphon.serve.dialects.chat import ChatClient
from antiphon.serve.transport.transport import Message

NO_PARAMETERS: Final[Mapping[str, Any]] = {}


class AgentChatDialect(ChatClient, Dialect[AgentNews]):
    """One client's side.

    Its players expect a frame for each of their own: between replies the client gets silence. From a reply's
    first sound to its end only that sound is sent, and nothing while it is held; the indices of frames then
    skip those that were not sent.
    """

    policy = Policy(has_answers=True)

    def __init__(self, request: ChatRequest, agent: AgentParts, now_s: float) -> None:
        """Prepare for the parameters of a ``request`` to an ``agent``."""
        super().__init__(request, agent.name, agent.stt, agent.tts, now_s)
        spec = agent.tts.engine.info.spec
        self._said_rate, self._said_frame = spec.sample_rate, spec.frame_samples
        self._heard_s, self._said_samples = 0.0, 0
        self._has_reply = self._is_sounding = self._is_unwanted = self._has_text = False

    def hear(self) -> Sequence[Action]:
        actions = super().hear()
        if not self.is_begun:
            return actions
        self._heard_s += sum(it.seconds for it in actions if isinstance(it, PushAudio))
        silence: list[Action] = []
        while not self._is_sounding and self._said_samples + self._said_frame <= self._due_samples:
            sound = self._sound(np.zeros(self._said_frame, np.float32))
            silence += [Send(it) for it in sound]
        return (*actions, *silence)

    def flush(self) -> Sequence[Action]:
        """Discard the rest of the current reply."""
        self._is_unwanted, self._is_sounding = self._has_reply, False
        cut = [Send(self._cut())] if self.request.extended else []
        return (Instruct(CancelReply()), *cut)

    def parameters(self, facts: HelloFacts) -> Mapping[str, Any]:
        return NO_PARAMETERS

    def messages(self, reply: AgentNews) -> Sequence[Message]:
        match reply:
            case WordHeard(text):
                return self.event(events.heard(text))
            case ToolCalled(name=name, pieces=pieces):
                return self.event(events.tool(name, "".join(pieces)))
            case ReplyBegan():
                self._has_reply, self._has_text = True, False
            case ReplyText(_, text) if not self._is_unwanted:
                begins, self._has_text = not self._has_text, True
                return (moshi.encode(moshi.Text(f" {text}" if begins else text)),)
            case ReplySound(_, pcm) if not self._is_unwanted:
                self._is_sounding = True
                return [moshi.encode(it) for it in self._sound(pcm)]
            case ReplyOver(outcome):
                self._has_reply = self._is_sounding = self._is_unwanted = False
                cut = self._cut()
                return self.event(cut) if outcome == INTERRUPTED else ()
        return ()

    @property
    def _due_samples(self) -> int:
        """Samples that the client has sent, at the rate of its output."""
        return round(self._heard_s * self._said_rate)

    def _sound(self, pcm: FloatArray) -> list[moshi.Message]:
        frame = self._said_samples // self._said_frame
        self._said_samples += pcm.size
        payloads = self.encoder.encode(pcm)
        if self.is_stamped:
            return [moshi.StampedAudio(frame, 0.0, 0.0, it) for it in payloads]
        return [moshi.Audio(it) for it in payloads]

    def _cut(self) -> moshi.Event:
        """End the sound of a reply; the next one begins with a whole frame."""
        said = max(self._said_samples, self._due_samples)
        frame = -(-said // self._said_frame)
        self._said_samples = frame * self._said_frame
        return events.interrupted(frame)

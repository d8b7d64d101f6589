"""The protocol of ``/api/chat`` with a voice agent: words and sound, and silence between replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from antiphon.protocol import resume as resuming
from antiphon.protocol.chat import ChatRequest
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.local_resume import LocalResume, Recent
from antiphon.serve.calls.values import Action, HelloFacts, Instruct, Policy, PushAudio, Send
from antiphon.serve.dialects.chat import ChatClient
from antiphon.serve.transport.transport import Message

NO_PARAMETERS: Final[Mapping[str, Any]] = {}

NEWS: Final = frozenset({"heard", "tool", "interrupted"})
"""Events that must arrive."""


class AgentChatDialect(ChatClient, Dialect[AgentNews]):
    """One client's ``/api/chat`` with a voice agent.

    Players expect one frame for each frame that they send, so the client gets silence between replies. From a
    reply's first sound to its end only its sound is sent, and no frames while it is paused. The indices of
    frames then skip the frames that were not sent.
    """

    policy = Policy(has_answers=True)

    def __init__(
        self, request: ChatRequest, agent: AgentParts, now_s: float, resume: LocalResume | None = None
    ) -> None:
        """Prepare for the parameters of a ``request`` to an ``agent``; with ``resume`` texts are numbered."""
        super().__init__(request, agent.name, agent.stt, agent.tts, now_s)
        spec = agent.tts.engine.info.spec
        self._resume, self._recent = resume, Recent(spec.frame_ms)
        self._said_frame = spec.frame_samples
        self._heard_s, self._said_samples = 0.0, 0
        self._has_reply = self._is_sounding = self._is_unwanted = self._has_text = False
        self._session = ""

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
        self._recent.clear()
        cut = [Send(self._cut())] if self.request.extended else []
        return (Instruct(CancelReply()), *cut)

    def follow_other(self, message: moshi.Message) -> Sequence[Action]:
        if isinstance(message, moshi.Unknown) and message.tag == resuming.NUMBERED and self._resume:
            self._resume.confirm(resuming.decode_ack(message.data).seq)
        return ()

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        terms = None if self._resume is None else self._resume.terms()
        self._session = facts.session
        return super().hello(replace(facts, terms=terms))

    def resumed(
        self, request: ChatRequest, claim: resuming.Claim
    ) -> tuple[Sequence[Message], Sequence[Action]]:
        """Continue the call on another connection of the client, in the format of this ``request``."""
        assert self._resume is not None
        self.request = request
        self._decoder.close()
        self.encoder.close()
        self.renew_codecs()
        terms, input_frame = self._resume.terms(), self.skip_to(claim.input_frame)
        first, missed, frames = self._recent.after(claim.frame, self._said_samples // self._said_frame)
        event = events.resumed(
            session=self._session,
            token=terms["token"],
            input_frame=input_frame,
            missed_frames=missed,
            replay_from=first,
            worker=terms.get("worker", ""),
        )
        audio = [moshi.encode(it) for frame, pcm in frames for it in self._audio(frame, pcm)]
        again = self._recent.replayed_sound(claim.frame, first)
        return [*self.event(event), *self._resume.sequence.after(claim.seq), *audio], [Instruct(again)]

    def encode(self, event: moshi.Message) -> Sequence[Message]:
        """Encode a message; text, and events that must arrive, are numbered in a resumable call."""
        data = moshi.encode(event)
        is_news = isinstance(event, moshi.Text) or (isinstance(event, moshi.Event) and event.type in NEWS)
        if self._resume is not None and is_news:
            data = resuming.encode_numbered(self._resume.sequence.seq, data)
            self._resume.sequence.add(data)
        return (data,)

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
                return self.encode(moshi.Text(f" {text}" if begins else text))
            case ReplySound(item, pcm) if not self._is_unwanted:
                self._is_sounding = True
                return [moshi.encode(it) for it in self._sound(pcm, item)]
            case ReplyOver(outcome):
                self._has_reply = self._is_sounding = self._is_unwanted = False
                cut = self._cut()
                if outcome != INTERRUPTED:
                    return ()
                self._recent.clear()
                return self.event(cut)
        return ()

    @property
    def _due_samples(self) -> int:
        """Samples that the client has sent, at the rate of its output."""
        return round(self._heard_s * self._said_rate)

    def _sound(self, pcm: FloatArray, item: str = "") -> list[moshi.Message]:
        frame = self._said_samples // self._said_frame
        self._said_samples += pcm.size
        self._recent.add(frame, pcm, item)
        return self._audio(frame, pcm)

    def _audio(self, frame: int, pcm: FloatArray) -> list[moshi.Message]:
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

"""The protocol of ``/api/chat`` with a model: its output, and the numbered messages of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.ipc.values import FrameReply
from antiphon.protocol import events, moshi, resume
from antiphon.protocol.chat import ChatRequest, parameters_to_json
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.resume import OutboundSequence
from antiphon.serve.calls.values import Acknowledged, Action, Flush, HelloFacts, Policy
from antiphon.serve.dialects.chat_client import AUDIO_TAG, ChatClient
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message


class ChatDialect(ChatClient, Dialect[FrameReply]):
    """One client's side; with a ``sequence`` its texts and events are numbered."""

    policy = Policy(at_once=AUDIO_TAG)

    def __init__(
        self,
        request: ChatRequest,
        model: ServedModel,
        now_s: float,
        sequence: OutboundSequence | None = None,
    ) -> None:
        """Prepare for the parameters of a ``request`` to a ``model``."""
        super().__init__(request, model.name, model, model, now_s)
        self.tokenizer = model.tokenizer
        self._sequence = sequence

    def follow_other(self, message: moshi.Message) -> Sequence[Action]:
        if isinstance(message, moshi.Unknown) and message.tag == resume.NUMBERED and self._sequence:
            return (Acknowledged(resume.decode_ack(message.data).seq),)
        return ()

    def flush(self) -> Sequence[Action]:
        return (Flush(),)

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        if facts.resumed is None:
            return super().hello(facts)
        self.is_begun = True
        found = facts.resumed.found
        event = events.resumed(
            session=found.call,
            token=facts.resumed.terms["token"],
            input_frame=facts.next_frame,
            missed_frames=facts.resumed.missed_frames,
            replay_from=found.replay_from,
            worker=facts.resumed.terms.get("worker", ""),
        )
        return (*self.event(event), *(data for _, data in found.notes))

    def parameters(self, facts: HelloFacts) -> Mapping[str, Any]:
        return parameters_to_json(facts.parameters)

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """Audio first, then its text, as upstream's server sends them."""
        messages: list[bytes] = []
        if reply.pcm is not None:
            head = AUDIO_TAG
            if self.is_stamped:
                head = moshi.stamped_head(reply.frame, reply.step_ms, reply.wait_ms)
            messages = [head + payload for payload in self.encoder.encode(reply.pcm)]
        is_news = self._sequence is None or reply.frame >= self._sequence.first_news
        if is_news and (text := self.text_of(reply)):
            messages.append(self._numbered(moshi.Text(text)))
        return messages

    def _numbered(self, message: moshi.Message) -> bytes:
        """A text, or an event that must arrive."""
        data = moshi.encode(message)
        if self._sequence is not None:
            data = resume.encode_numbered(self._sequence.seq, data)
            self._sequence.add(data)
        return data

    def interrupted(self, frame: int) -> Sequence[Message]:
        return (self._numbered(events.interrupted(frame)),) if self.request.extended else ()

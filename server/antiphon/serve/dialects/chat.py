"""The protocol of ``/api/chat``: Moshi's messages, its extension, and its numbered messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from antiphon.audio.codecs import CODECS, make_decoder, make_encoder
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.protocol import events, moshi, resume
from antiphon.protocol.chat import ChatRequest, parameters_to_json, parse_set
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.resume import OutboundSequence
from antiphon.serve.calls.values import (
    Acknowledged,
    Action,
    ChangeParameters,
    Close,
    Flush,
    HelloFacts,
    Policy,
    PushAudio,
    Send,
)
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.transport.transport import Message

STATS_PERIOD_S: Final = 1.0
"""How often extended clients get statistics."""

AUDIO_TAG: Final = bytes((moshi.Tag.AUDIO,))
EXTENSION_TAGS: Final = (bytes((moshi.Tag.EVENT,)), bytes((moshi.Tag.STAMPED_AUDIO,)))
UNHEARD: Final = np.zeros(0, np.float32)


class ChatDialect(Dialect[FrameReply]):
    """One client's side; with a ``sequence`` its text and its events have numbers."""

    policy = Policy(at_once=AUDIO_TAG)

    def __init__(
        self,
        request: ChatRequest,
        model: ServedModel,
        now_s: float,
        sequence: OutboundSequence | None = None,
    ) -> None:
        """Prepare for what a ``request`` asks of a ``model``."""
        super().__init__()
        self.tokenizer = model.tokenizer
        self._request, self._sequence = request, sequence
        self._name, self._info = model.name, model.engine.info
        self._rate, self._frame_samples = self._info.spec.sample_rate, self._info.spec.frame_samples
        self._decoder = make_decoder(request.format)
        self._encoder = make_encoder(request.format)
        self._is_stamped = request.extended and CODECS[request.format].is_framed
        self._is_muted, self._is_begun = False, False
        self._heard_samples = self._missing_samples = 0  # of the frame that is not whole yet
        self._stats_due_s = now_s + STATS_PERIOD_S

    # What comes in.

    def feed(self, message: Message) -> Sequence[Action]:
        """Follow a message. Unknown tags and those that say nothing to a server are passed over."""
        if isinstance(message, str):
            return self._hear()
        if message[:1] == AUDIO_TAG:
            if len(message) > 1:
                self._decoder.put(message[1:])
            is_gathering = self._decoder.waiting_samples < self._missing_samples
            return () if is_gathering else self._hear()
        if not self._request.extended and message[:1] in EXTENSION_TAGS:
            return ()
        decoded = moshi.decode(message)
        if isinstance(decoded, moshi.Control):
            return self._control(decoded.action)
        if isinstance(decoded, moshi.Event):
            return self._follow(decoded)
        if isinstance(decoded, moshi.Ping) and self._request.extended:
            return (Send(decoded, is_optional=True),)  # a browser neither sees nor sends a WebSocket's pings
        if isinstance(decoded, moshi.Unknown) and decoded.tag == resume.NUMBERED and self._sequence:
            return (Acknowledged(resume.decode_ack(decoded.data).seq),)
        return ()

    def _hear(self) -> Sequence[Action]:
        """Decode one step of what came; before the call begins the decoder only follows the stream."""
        pcm = self._decoder.step()
        self.has_more = pcm is not None and self._decoder.has_more
        if pcm is None or not pcm.size:
            return ()
        seconds = pcm.size / self._rate
        if self._is_muted or not self._is_begun:
            return (PushAudio(UNHEARD, seconds),)
        self._heard_samples += pcm.size
        self._missing_samples = self._frame_samples - self._heard_samples % self._frame_samples
        return (PushAudio(pcm, seconds),)

    def _control(self, action: moshi.ControlAction) -> Sequence[Action]:
        """Obey a control message, as far as full duplex gives it a meaning.

        pause: what is said until start is not heard; restart: forget what is queued both ways, and hear
        again; start: hear again; endTurn: nothing, since this server has no turns.
        """
        if action is moshi.ControlAction.END_TURN:
            return ()
        before = self._hear()
        self._is_muted = action is moshi.ControlAction.PAUSE
        return (*before, Flush()) if action is moshi.ControlAction.RESTART else before

    def _follow(self, event: moshi.Event) -> Sequence[Action]:
        events.check_event(event, sender=events.Sender.CLIENT)
        match event.type:
            case "set":
                return (ChangeParameters(lambda current: parse_set(event.fields, current)),)
            case "flush":
                return (*self._hear(), Flush())
            case _:
                return (Close(),)

    # What goes out.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self._is_begun = True
        if facts.resumed is None:
            return (moshi.encode(moshi.Handshake()), *self._event(self._ready(facts)))
        found = facts.resumed.found
        event = events.resumed(
            session=found.call,
            token=facts.resumed.terms["token"],
            input_frame=facts.next_frame,
            missed_frames=facts.resumed.missed_frames,
            replay_from=found.replay_from,
            worker=facts.resumed.terms.get("worker", ""),
        )
        return (*self._event(event), *(data for _, data in found.notes))

    def _ready(self, facts: HelloFacts) -> moshi.Event:
        spec = self._info.spec
        return events.ready(
            session=facts.session,
            model=self._name,
            sample_rate=spec.sample_rate,
            frame_samples=spec.frame_samples,
            slots=self._info.slots,
            parameters=parameters_to_json(facts.parameters),
            recorded=facts.is_recorded,
            resume=facts.terms,
        )

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """Audio first, then its text, as upstream's server sends them."""
        messages: list[bytes] = []
        if reply.pcm is not None:
            head = AUDIO_TAG
            if self._is_stamped:
                head = moshi.stamped_head(reply.frame, reply.step_ms, reply.wait_ms)
            messages = [head + payload for payload in self._encoder.encode(reply.pcm)]
        is_news = self._sequence is None or reply.frame >= self._sequence.first_news
        if is_news and (text := self.text_of(reply)):
            messages.append(self._numbered(moshi.Text(text)))
        return messages

    def encode(self, event: moshi.Message) -> Sequence[Message]:
        return (moshi.encode(event),)

    def _event(self, event: moshi.Event) -> Sequence[Message]:
        """An event, for clients that requested them."""
        return (moshi.encode(event),) if self._request.extended else ()

    def _numbered(self, message: moshi.Message) -> bytes:
        """Text, or an event that has to arrive."""
        data = moshi.encode(message)
        if self._sequence is not None:
            data = resume.encode_numbered(self._sequence.seq, data)
            self._sequence.add(data)
        return data

    def interrupted(self, frame: int) -> Sequence[Message]:
        return (self._numbered(events.interrupted(frame)),) if self._request.extended else ()

    def queued(self, ahead: int, retry_after_s: int) -> Sequence[Message]:
        return self._event(events.queued(position=ahead, ahead=ahead, retry_after_s=retry_after_s))

    def draining(self, deadline_s: float) -> Sequence[Message]:
        return self._event(events.draining(deadline_s))

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """Statistics, once a second."""
        if not self._request.extended or now_s < self._stats_due_s:
            return ()
        self._stats_due_s += STATS_PERIOD_S
        now = stats()
        return self._event(
            events.stats(
                frames_in=now.frames_in,
                frames_out=now.frames_out,
                queue_frames=now.queue_frames,
                late=now.late,
                lost=now.lost,
                dropped=now.dropped_in,
                dropped_out=now.dropped_out,
                step_ms_p50=round(now.step_ms_p50, 1),
                step_ms_p99=round(now.step_ms_p99, 1),
            )
        )

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        return self._event(events.error_of(error)), wire_form(error).close

    def over(self, _stats: SessionStats, *, is_lost: bool) -> None:
        self._decoder.close()
        self._encoder.close()

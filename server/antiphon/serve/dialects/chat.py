"""The protocol of ``/api/chat``: the client's side, for models and agents, and the output of a model.

It has Moshi's messages, the extension, and the numbered messages of a call that can be resumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from antiphon.audio.codecs import CODECS, make_decoder, make_encoder
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.protocol import events, moshi, resume
from antiphon.protocol.chat import ChatRequest, parameters_to_json, parse_set
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.local_resume import continued
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
"""Seconds between statistics of extended clients."""

AUDIO_TAG: Final = bytes((moshi.Tag.AUDIO,))
EXTENSION_TAGS: Final = (bytes((moshi.Tag.EVENT,)), bytes((moshi.Tag.STAMPED_AUDIO,)))
UNHEARD: Final = np.zeros(0, np.float32)


class ChatClient(ABC):
    """The common part of the dialects of ``/api/chat``: the client's side.

    It serves a call named ``name``. ``hears`` is the model for the client's audio, ``speaks`` the model for
    the output. With ``is_stamped`` audio has the number of its frame. Audio is processed once ``is_begun`` is
    true.
    """

    def __init__(
        self, request: ChatRequest, name: str, hears: ServedModel, speaks: ServedModel, now_s: float
    ) -> None:
        """Prepare for the parameters of a request."""
        super().__init__()
        self.request, self.info = request, hears.engine.info
        self._name = name
        self._rate, self._frame_samples = self.info.spec.sample_rate, self.info.spec.frame_samples
        self._said_rate = speaks.engine.info.spec.sample_rate
        self.renew_codecs()
        self.is_stamped = request.extended and CODECS[request.format].is_framed
        self._is_muted, self.is_begun = False, False
        self._heard_samples = self._missing_samples = 0  # of the unfinished frame
        self._skipped_samples = 0  # of the next audio, which was sent on another connection
        self._stats_due_s = now_s + STATS_PERIOD_S

    def renew_codecs(self) -> None:
        """Begin new streams in both directions, for a call or for its next connection."""
        self.has_more = False
        self._decoder = make_decoder(self.request.format, self._rate)
        self.encoder = make_encoder(self.request.format, self._said_rate)

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        """Handle a message. Tags that are unknown, or that a server ignores, have no effect."""
        if isinstance(message, str):
            return self.hear()
        if message[:1] == AUDIO_TAG:
            if len(message) > 1:
                self._decoder.put(message[1:])
            is_gathering = self._decoder.waiting_samples < self._missing_samples
            return () if is_gathering else self.hear()
        if not self.request.extended and message[:1] in EXTENSION_TAGS:
            return ()
        decoded = moshi.decode(message)
        if isinstance(decoded, moshi.Control):
            return self._control(decoded.action)
        if isinstance(decoded, moshi.Event):
            return self._follow(decoded)
        if isinstance(decoded, moshi.Ping) and self.request.extended:
            return (Send(decoded, is_optional=True),)  # a browser's scripts cannot use a WebSocket's pings
        return self.follow_other(decoded)

    def hear(self) -> Sequence[Action]:
        """Decode one step of the audio; before the call begins the decoder only follows the stream."""
        pcm = self._decoder.step()
        self.has_more = pcm is not None and self._decoder.has_more
        if pcm is None or not pcm.size:
            return ()
        skipped = min(self._skipped_samples, pcm.size)
        pcm, self._skipped_samples = pcm[skipped:], self._skipped_samples - skipped
        seconds = pcm.size / self._rate
        if self._is_muted or not self.is_begun:
            return (PushAudio(UNHEARD, seconds),)
        self._heard_samples += pcm.size
        self._missing_samples = self._frame_samples - self._heard_samples % self._frame_samples
        return (PushAudio(pcm, seconds),)

    def skip_to(self, frame: int) -> int:
        """The number of the next frame that the client must send; the client can send frames from ``frame``
        on.
        """
        heard, self._skipped_samples, frame = continued(self._heard_samples, frame, self._frame_samples)
        self._heard_samples, self._missing_samples, self._is_muted = heard, 0, False
        return frame

    def _control(self, action: moshi.ControlAction) -> Sequence[Action]:
        """Apply a control message, if it has a meaning in full duplex.

        pause: ignore audio until start; restart: discard waiting data in both directions, and read audio
        again; start: read audio again; endTurn: no effect, since this server has no turns.
        """
        if action is moshi.ControlAction.END_TURN:
            return ()
        before = self.hear()
        self._is_muted = action is moshi.ControlAction.PAUSE
        return (*before, *self.flush()) if action is moshi.ControlAction.RESTART else before

    def _follow(self, event: moshi.Event) -> Sequence[Action]:
        events.check_event(event, sender=events.Sender.CLIENT)
        match event.type:
            case "set":
                return (ChangeParameters(lambda current: parse_set(event.fields, current)),)
            case "flush":
                return (*self.hear(), *self.flush())
            case _:
                return (Close(),)

    def follow_other(self, _message: moshi.Message) -> Sequence[Action]:
        """Handle a message that only some calls support."""
        return ()

    @abstractmethod
    def flush(self) -> Sequence[Action]:
        """The actions for a client that stops the current output."""

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self.is_begun = True
        spec = self.info.spec
        ready = events.ready(
            session=facts.session,
            model=self._name,
            sample_rate=spec.sample_rate,
            frame_samples=spec.frame_samples,
            slots=self.info.slots,
            parameters=self.parameters(facts),
            recorded=facts.is_recorded,
            resume=facts.terms,
        )
        return (moshi.encode(moshi.Handshake()), *self.event(ready))

    @abstractmethod
    def parameters(self, facts: HelloFacts) -> Mapping[str, Any]:
        """The sampling parameters in use, as JSON."""

    def encode(self, event: moshi.Message) -> Sequence[Message]:
        return (moshi.encode(event),)

    def event(self, event: moshi.Event) -> Sequence[Message]:
        """The messages that carry an event; none if the client did not request events."""
        return self.encode(event) if self.request.extended else ()

    def queued(self, ahead: int, retry_after_s: int) -> Sequence[Message]:
        return self.event(events.queued(position=ahead, ahead=ahead, retry_after_s=retry_after_s))

    def draining(self, deadline_s: float) -> Sequence[Message]:
        return self.event(events.draining(deadline_s))

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """Statistics, once a second."""
        if not self.request.extended or now_s < self._stats_due_s:
            return ()
        self._stats_due_s += STATS_PERIOD_S
        now = stats()
        return self.event(
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
        return self.event(events.error_of(error)), wire_form(error).close

    def over(self, _stats: SessionStats, *, is_lost: bool) -> None:
        self._decoder.close()
        self.encoder.close()


class ChatDialect(ChatClient, Dialect[FrameReply]):
    """One client's ``/api/chat`` with a model; with a ``sequence`` its texts and events are numbered."""

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
        """The audio of a reply, and then its text, as upstream's server orders them."""
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

"""The protocol of OpenAI Live: the client's side, for models and agents, and the output of a model.

Events in JSON go to a session's client and to its watchers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

import numpy as np

from antiphon.audio.codec import Decoder
from antiphon.audio.pcm import s16le_from_float
from antiphon.errors import AntiphonError, FieldError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.models.spec import ModelSpec
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.event_text import expiry_of
from antiphon.protocol.live_session import SessionChange
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
from antiphon.serve.calls.local_resume import continued
from antiphon.serve.calls.resume import OutboundSequence
from antiphon.serve.calls.values import Acknowledged, Action, Close, HelloFacts, Policy, PushAudio, Send
from antiphon.serve.dialects.event_audio import EventAudio, decoded, line_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.media.duplex_line import DuplexLine
from antiphon.serve.transport.transport import Message

USAGE_PERIOD_S: Final = 10.0
"""Seconds between usage events, as in the hosted service."""

DRAIN_S: Final = 4.0
"""Seconds that an answer may continue after ``session.close``: LiveKit's client waits 5 s for the end."""

UNNUMBERED: Final = (
    events.SessionStarted,
    events.SessionResumed,
    events.SessionClosed,
    events.OutputAudio,
    events.UsageUpdated,
    events.Error,
)
"""Events without numbers: audio is numbered by frames, and a later usage event replaces an earlier one."""


Watcher: TypeAlias = Callable[[events.ServerEvent | None], None]
"""Gets each event of a session, and None at its end."""


class Numbers(Protocol):
    """The numbers of a resumable call's events, with copies of the events that the client may lack.

    ``seq`` is the next number, ``kept`` a note for the next connection.
    """

    seq: int
    kept: bytes

    def add(self, data: bytes) -> None:
        """Number these bytes as the next message."""


class LiveClient(ABC):
    """The common part of the dialects of Live: the client's side.

    ``name`` is the name of the model or the agent. ``spec`` is the model of the client's audio, which
    ``decoder`` decodes. With ``numbers`` the client gets each of its events exactly once. ``is_begun``: the
    session has started. ``has_text``: the client's text has an effect.
    """

    decoder: Decoder
    has_text = has_more = False

    def __init__(
        self,
        start: live.Start | live.ResumeSession,
        name: str,
        spec: ModelSpec,
        *,
        notices: Sequence[events.Info] = (),
        numbers: Numbers | None = None,
    ) -> None:
        """Prepare. ``notices`` report fields without effect."""
        super().__init__()
        self.watchers: set[Watcher] = set()
        self.live_id = ""  # the protocol's id of the session, on every connection
        self.is_begun = False
        self.numbers = numbers
        self._has_tracks = isinstance(start, live.Start) and start.has_tracks
        self.audio = EventAudio("session.update")
        self.is_quiet = isinstance(start, live.ResumeSession) and start.is_muted
        self.config, self.start = start.session, start
        self.notices: list[events.Info] = list(notices)
        self.spec = spec
        self._name = name
        self._samples = self._skipped = 0  # of the client's audio: received, and repeated
        self._close_asked: live.Close | None = None
        self._usage_due_s = 0.0
        self._events = 0
        self._expires_at = expiry_of(time.time())

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        if self.has_more and not message:
            return self._decode()
        if self._has_tracks and isinstance(message, bytes):
            return self.obey(live.AppendAudio(message))
        return self.obey(live.decode(message, has_text=self.has_text))

    def obey(self, event: live.ClientEvent) -> Sequence[Action]:
        """The actions that an event of the client or a watcher requests.

        Raises:
            FieldError: the event is invalid; the session continues.
        """
        match event:
            case live.AppendAudio():
                return self._hear(event)
            case live.Mute():
                self.is_quiet = True
                return (Send(events.InputAudioMuted(event.event_id)),)
            case live.Unmute():
                self.is_quiet = False
                return (Send(events.InputAudioUnmuted(event.event_id)),)
            case live.Update():
                self.audio.renew()
                self._keep()
                actions = self.change(event.session, event.event_id)
                return (*actions, Send(events.SessionUpdated(self.shown(), event.event_id)))
            case live.Close():
                self._close_asked = self._close_asked or event
                return (Close(DRAIN_S),)
            case live.Start() | live.ResumeSession():
                name = "session.start" if isinstance(event, live.Start) else "session.resume"
                words = f"type is {name}, and the session has started"
                raise refusal(words, "session_already_started", event.event_id)
            case live.AcknowledgeEvents():
                if self.numbers is not None:
                    return self.acknowledged(event.seq)
                words = "type is session.acknowledge, and the connection did not request resume=1"
                raise refusal(words, "unsupported_event", event.event_id)
            case live.AppendText() | live.AddItem() | live.ContinueResponse():
                return self.follow_text(event)
            case live.Unsupported():
                words = f"type is {event.type}, which the model {self._name} cannot follow"
                raise refusal(words, "unsupported_event", event.event_id)

    def change(self, change: SessionChange, event_id: str | None) -> Sequence[Action]:
        """Apply a ``session.update`` event that has this id.

        Raises:
            FieldError: a field is invalid, and nothing has changed.
        """
        if change.delegation is not None:
            self.config = replace(self.config, delegation=change.delegation)
        if change.triggers is not None:
            self.config = replace(self.config, triggers=change.triggers)
        return ()

    def acknowledged(self, seq: int) -> Sequence[Action]:
        """Drop numbered events up to ``seq``, which the client has received."""
        return (Acknowledged(seq),)

    def follow_text(self, event: live.AppendText | live.AddItem | live.ContinueResponse) -> Sequence[Action]:
        """The actions for text of the client."""
        raise NotImplementedError

    def _hear(self, event: live.AppendAudio) -> Sequence[Action]:
        try:
            is_file = self.audio.is_file(event.audio, event.event_id)
        finally:
            self._keep()
        if is_file or not self.is_begun or self._close_asked is not None:
            return ()
        self.decoder.put(event.audio)
        return self._decode(event.event_id)

    def _decode(self, event_id: str | None = None) -> Sequence[Action]:
        pcm = decoded(self.decoder, event_id)
        self.has_more = self.decoder.has_more
        skipped = min(self._skipped, pcm.size)
        pcm, self._skipped = pcm[skipped:], self._skipped - skipped
        self._samples += pcm.size
        if self.watchers:
            self.show(events.InputAudio(s16le_from_float(pcm)))
        return (PushAudio(np.zeros_like(pcm) if self.is_quiet else pcm, pcm.size / self.spec.sample_rate),)

    def skip_to(self, frame: int) -> int:
        """The number of the next frame that the client must send; the client can send frames from ``frame``
        on.
        """
        self._samples, self._skipped, frame = continued(self._samples, frame, self.spec.frame_samples)
        return frame

    def _keep(self) -> None:
        if self.numbers is not None:
            self.numbers.kept = self.audio.kept

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self.is_begun, self.live_id = True, f"live_{facts.session}"
        self._usage_due_s = facts.now_s + USAGE_PERIOD_S
        return (*self.greeting(facts), *(it for notice in self.notices for it in self.encode(notice)))

    @abstractmethod
    def greeting(self, facts: HelloFacts) -> Sequence[Message]:
        """The messages for a session that starts, or continues."""

    def encode(self, event: events.ServerEvent) -> Sequence[Message]:
        """Encode an event for the client, and pass it to the watchers."""
        self.show(event)
        return (self.written(event),)

    def written(self, event: events.ServerEvent) -> Message:
        """Encode an event for the client only, with its number if it has one; for a track, only its audio."""
        if self._has_tracks and isinstance(event, events.OutputAudio):
            return event.delta
        self._events += 1
        numbers = self.numbers
        if numbers is None or isinstance(event, UNNUMBERED):
            return events.encode(event, f"event_{self._events}")
        text = events.encode(event, f"event_s{numbers.seq}", numbers.seq)
        numbers.add(text.encode())
        return text

    def show(self, event: events.ServerEvent) -> None:
        """Send an event to watchers."""
        for watcher in self.watchers:
            watcher(event)

    def shown(self) -> dict[str, object]:
        """The session object of events."""
        return self.config.shown(session_id=self.live_id, expires_at=self._expires_at)

    def draining(self, deadline_s: float) -> Sequence[Message]:
        return self.encode(events.Info("server_draining", f"the server shuts down within {deadline_s:g} s"))

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """A usage event: seconds so far, and the used share of the model's context."""
        if now_s < self._usage_due_s:
            return ()
        self._usage_due_s += USAGE_PERIOD_S
        now = stats()
        return self.encode(events.UsageUpdated(self._seconds(now), self.filled(now)))

    def filled(self, stats: SessionStats) -> float | None:
        """The used share of the model's context; None if the model has no context."""
        return None

    def _seconds(self, stats: SessionStats) -> float:
        return round(stats.frames_in * self.spec.frame_ms / 1000, 2)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        asked = self._close_asked
        reason = events.CloseReason.EXPIRED if asked is None else events.CloseReason.CLOSE_REQUESTED
        event_id = None if asked is None else asked.event_id
        closed = events.SessionClosed(reason, self.shown(), self._seconds(stats), event_id)
        return self.encode(closed), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """The event of an error; watchers get it only if it ends the session."""
        told = events.error_of(error)
        is_last = not isinstance(error, FieldError)
        return self.encode(told) if is_last else (self.written(told),), wire_form(error).openai_close

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        """End the watchers' connections, with a final event if the client does not get one."""
        if is_lost:
            lost = events.CloseReason.CONNECTION_LOST
            self.show(events.SessionClosed(lost, self.shown(), self._seconds(stats)))
        for watcher in self.watchers:
            watcher(None)


class LiveDialect(LiveClient, Dialect[FrameReply]):
    """One session of OpenAI Live with a model; with a ``sequence`` the client gets each event exactly
    once.
    """

    policy = Policy(expects_input=False, has_answers=True)

    def __init__(
        self,
        start: live.Start | live.ResumeSession,
        model: ServedModel,
        *,
        notices: Sequence[events.Info] = (),
        sequence: OutboundSequence | None = None,
    ) -> None:
        """Prepare. ``notices`` report fields without effect."""
        spec = model.engine.info.spec
        self._line = DuplexLine(line_of(start.session.format), spec)
        self.decoder = self._line.decoder
        super().__init__(start, model.name, spec, notices=notices, numbers=sequence)
        self.tokenizer = model.tokenizer
        self._sequence = sequence
        self._heard_before_ms = 0.0  # on other connections, without captions

    def caption(self, told: Word | Marked | events.Info) -> Sequence[Action]:
        if isinstance(told, Word):
            start_ms, end_ms = (self._heard_before_ms + 1000 * it for it in (told.start_s, told.end_s))
            return (Send(events.InputTranscript(f" {told.text}", round(start_ms), round(end_ms))),)
        if isinstance(told, Marked):
            return ()
        if self.is_begun:
            return (Send(told),)
        self.notices.append(told)
        return ()

    def greeting(self, facts: HelloFacts) -> Sequence[Message]:
        event_id, resumed = self.start.event_id, facts.resumed
        if resumed is None:
            terms = facts.terms and {**facts.terms, "frame_ms": self.spec.frame_ms}
            return self.encode(events.SessionStarted(self.shown(), event_id, terms))
        self._heard_before_ms = facts.next_frame * self.spec.frame_ms
        self.audio.go_on(resumed.found.kept)
        event = events.SessionResumed(
            self.shown(),
            resumed.terms,
            input_frame=facts.next_frame,
            replay_from=resumed.found.replay_from,
            missed_frames=resumed.missed_frames,
            client_event_id=event_id,
        )
        return (self.written(event), *(data.decode() for _, data in resumed.found.notes))

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """The audio of a reply, and then its text."""
        sequence, messages = self._sequence, list[Message]()
        if (said := self._line.say(reply)) is not None:
            number = None if sequence is None else reply.frame
            messages.append(self.written(events.OutputAudio(said.data, frame=number)))
            if self.watchers:
                self.show(events.OutputAudio(s16le_from_float(said.pcm), *self._line.span_ms(reply)))
        self.is_speaking = self._line.is_speaking
        if (sequence is None or reply.frame >= sequence.first_news) and (text := self.text_of(reply)):
            messages += self.encode(events.OutputTranscript(text, *self._line.span_ms(reply)))
        return messages

    def filled(self, stats: SessionStats) -> float | None:
        lm = self.spec.lm
        return None if lm is None else min(1.0, round(stats.frames_in / lm.context, 3))


def refusal(words: str, code: str, event_id: str | None, param: str = "type") -> FieldError:
    """The error for an event that cannot be applied."""
    return FieldError(words, param=param, code=code, event_id=event_id)

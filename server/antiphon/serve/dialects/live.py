"""The protocol of OpenAI Live: JSON events for a session's client, and for its watchers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from antiphon.audio.pcm import s16le_from_float
from antiphon.errors import AntiphonError, FieldError
from antiphon.ipc.values import FrameReply, SessionStats
from antiphon.models.transcript import Marked, Word
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.event_text import expiry_of
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.calls.dialect import Dialect
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


class LiveDialect(Dialect[FrameReply]):
    """One session; with a ``sequence`` its client gets each of its events exactly once."""

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
        super().__init__()
        self.watchers: set[Watcher] = set()
        self.live_id = ""  # the protocol's id of the session, on every connection
        self.tokenizer = model.tokenizer
        self._config, self._start, self._sequence = start.session, start, sequence
        self._notices: list[events.Info] = list(notices)
        self._model, self._spec = model.name, model.engine.info.spec
        line = line_of(start.session.format)
        self._line = DuplexLine(line, self._spec)
        self._audio = EventAudio("session.update")
        self.is_quiet = isinstance(start, live.ResumeSession) and start.is_muted
        self._is_begun = False
        self._close_asked: live.Close | None = None
        self._usage_due_s = 0.0
        self._heard_before_ms = 0.0  # on other connections, without captions
        self._events = 0
        self._expires_at = expiry_of(time.time())

    # From the client.

    def feed(self, message: Message) -> Sequence[Action]:
        return self.obey(live.decode(message))

    def obey(self, event: live.ClientEvent) -> Sequence[Action]:
        """The actions that an event of the client or of a watcher requests.

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
                self._audio.renew()
                self._keep()
                change = event.session
                if change.delegation is not None:
                    self._config = replace(self._config, delegation=change.delegation)
                if change.triggers is not None:
                    self._config = replace(self._config, triggers=change.triggers)
                return (Send(events.SessionUpdated(self._shown(), event.event_id)),)
            case live.Close():
                self._close_asked = self._close_asked or event
                return (Close(DRAIN_S),)
            case live.Start() | live.ResumeSession():
                name = "session.start" if isinstance(event, live.Start) else "session.resume"
                words = f"type is {name}, and the session has started"
                raise _refusal(words, "session_already_started", event.event_id)
            case live.AcknowledgeEvents():
                if self._sequence is not None:
                    return (Acknowledged(event.seq),)
                words = "type is session.acknowledge, and the connection did not ask for resume=1"
                raise _refusal(words, "unsupported_event", event.event_id)
            case live.Unsupported():
                words = f"type is {event.type}, which the model {self._model} cannot follow"
                raise _refusal(words, "unsupported_event", event.event_id)

    def _hear(self, event: live.AppendAudio) -> Sequence[Action]:
        try:
            is_file = self._audio.is_file(event.audio, event.event_id)
        finally:
            self._keep()
        if is_file or not self._is_begun or self._close_asked is not None:
            return ()
        pcm = decoded(self._line.decode, event.audio, event.event_id)
        if self.watchers:
            self._show(events.InputAudio(s16le_from_float(pcm)))
        return (PushAudio(np.zeros_like(pcm) if self.is_quiet else pcm, pcm.size / self._spec.sample_rate),)

    def _keep(self) -> None:
        if self._sequence is not None:
            self._sequence.kept = self._audio.kept

    def caption(self, told: Word | Marked | events.Info) -> Sequence[Action]:
        if isinstance(told, Word):
            start_ms, end_ms = (self._heard_before_ms + 1000 * it for it in (told.start_s, told.end_s))
            return (Send(events.InputTranscript(f" {told.text}", round(start_ms), round(end_ms))),)
        if isinstance(told, Marked):
            return ()
        if self._is_begun:
            return (Send(told),)
        self._notices.append(told)
        return ()

    # To the client.

    def hello(self, facts: HelloFacts) -> Sequence[Message]:
        self._is_begun, self.live_id = True, f"live_{facts.session}"
        self._usage_due_s = facts.now_s + USAGE_PERIOD_S
        event_id, resumed = self._start.event_id, facts.resumed
        if resumed is not None:
            self._heard_before_ms = facts.next_frame * self._spec.frame_ms
            self._audio.go_on(resumed.found.kept)
            event = events.SessionResumed(
                self._shown(),
                resumed.terms,
                input_frame=facts.next_frame,
                replay_from=resumed.found.replay_from,
                missed_frames=resumed.missed_frames,
                client_event_id=event_id,
            )
            messages: list[Message] = [
                self._written(event),
                *(data.decode() for _, data in resumed.found.notes),
            ]
        else:
            terms = facts.terms and {**facts.terms, "frame_ms": self._spec.frame_ms}
            messages = [*self.encode(events.SessionStarted(self._shown(), event_id, terms))]
        return (*messages, *(it for notice in self._notices for it in self.encode(notice)))

    def messages(self, reply: FrameReply) -> Sequence[Message]:
        """Audio, then its text."""
        sequence, messages = self._sequence, list[Message]()
        if (said := self._line.say(reply)) is not None:
            number = None if sequence is None else reply.frame
            messages.append(self._written(events.OutputAudio(said.data, frame=number)))
            if self.watchers:
                self._show(events.OutputAudio(s16le_from_float(said.pcm), *self._line.span_ms(reply)))
        self.is_speaking = self._line.is_speaking
        if (sequence is None or reply.frame >= sequence.first_news) and (text := self.text_of(reply)):
            messages += self.encode(events.OutputTranscript(text, *self._line.span_ms(reply)))
        return messages

    def encode(self, event: events.ServerEvent) -> Sequence[Message]:
        """An event for the client and its watchers."""
        self._show(event)
        return (self._written(event),)

    def _written(self, event: events.ServerEvent) -> str:
        self._events += 1
        sequence = self._sequence
        if sequence is None or isinstance(event, UNNUMBERED):
            return events.encode(event, f"event_{self._events}")
        text = events.encode(event, f"event_s{sequence.seq}", sequence.seq)
        sequence.add(text.encode())
        return text

    def _show(self, event: events.ServerEvent) -> None:
        for watcher in self.watchers:
            watcher(event)

    def _shown(self) -> dict[str, object]:
        return self._config.shown(session_id=self.live_id, expires_at=self._expires_at)

    def draining(self, deadline_s: float) -> Sequence[Message]:
        return self.encode(events.Info("server_draining", f"the server shuts down within {deadline_s:g} s"))

    def news(self, now_s: float, stats: Callable[[], SessionStats]) -> Sequence[Message]:
        """Seconds so far, and how much of the model's context they fill."""
        if now_s < self._usage_due_s:
            return ()
        self._usage_due_s += USAGE_PERIOD_S
        lm, now = self._spec.lm, stats()
        ratio = None if lm is None else min(1.0, round(now.frames_in / lm.context, 3))
        return self.encode(events.UsageUpdated(self._seconds(now), ratio))

    def _seconds(self, stats: SessionStats) -> float:
        return round(stats.frames_in * self._spec.frame_ms / 1000, 2)

    def finish(self, stats: SessionStats) -> tuple[Sequence[Message], AntiphonError | None]:
        asked = self._close_asked
        reason = events.CloseReason.EXPIRED if asked is None else events.CloseReason.CLOSE_REQUESTED
        event_id = None if asked is None else asked.event_id
        closed = events.SessionClosed(reason, self._shown(), self._seconds(stats), event_id)
        return self.encode(closed), None

    def error(self, error: AntiphonError) -> tuple[Sequence[Message], int]:
        """The event of an error; watchers get only one that ends the session."""
        told = events.error_of(error)
        is_last = not isinstance(error, FieldError)
        return self.encode(told) if is_last else (self._written(told),), wire_form(error).openai_close

    def over(self, stats: SessionStats, *, is_lost: bool) -> None:
        """End the watchers' connections, with a final event where the client gets none."""
        if is_lost:
            lost = events.CloseReason.CONNECTION_LOST
            self._show(events.SessionClosed(lost, self._shown(), self._seconds(stats)))
        for watcher in self.watchers:
            watcher(None)


def _refusal(words: str, code: str, event_id: str | None) -> FieldError:
    return FieldError(words, param="type", code=code, event_id=event_id)

"""One session of OpenAI Live: audio in and out all the time, text beside it, as JSON events.

The model hears without a pause: silence stands in for audio that is muted or overdue. Between answers what it
says is gated to exact zeros. Times in events count audio from the session's start.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.errors import AntiphonError, FieldError
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import FrameReply
from antiphon.models.prompt import Prompt
from antiphon.models.words import Word
from antiphon.protocol import live
from antiphon.protocol import live_events as events
from antiphon.protocol.live_session import SessionChange
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.duplex_call import DuplexCall
from antiphon.serve.routes.live_audience import Audience
from antiphon.serve.routes.live_recogniser import LiveRecogniser
from antiphon.serve.transport.socket import Socket

USAGE_PERIOD_S: Final = 10.0
"""The interval of usage events, as in the hosted service."""

DRAIN_S: Final = 4.0
"""How long an answer may go on after ``session.close``: LiveKit's client waits 5 s for the end."""

LIFE_S: Final = 86_400
"""From the start to ``expires_at``, a field that the API requires. Sessions have no limit."""


class LiveCall(DuplexCall):
    """A live conversation in events. Its socket was open before: the first event says what is wanted."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        start: live.Start | live.ResumeSession,
        *,
        prompt: Prompt | None = None,
        recogniser: LiveRecogniser | None = None,
        notices: Sequence[events.Info] = (),
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare. ``notices`` say what of the wishes has no effect."""
        line = start.session.format
        super().__init__(services, model, line, line, caller=caller)
        self.config = start.session
        self.audience = self._new_audience()
        self._at_end.append(self._end_audience)
        self._start, self._prompt, self._notices = start, prompt, list(notices)
        self._recogniser = recogniser
        if recogniser is not None:
            self._at_end.append(recogniser.close)
        self._close_asked: live.Close | None = None
        self._usage_due_s = 0.0
        self._heard_before_s = 0.0  # on other connections, without this recogniser
        self._expires_at = int(time.time()) + LIFE_S

    def _new_audience(self) -> Audience:
        """Where events go: the client, and watchers."""
        return Audience(lambda: self._socket)

    @property
    def live_id(self) -> str:
        """What the protocol calls the session."""
        return "" if self._session is None else f"live_{self._session.id}"

    async def admit(self) -> None:
        """Ask for a row at once: this protocol has no queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """
        await self._submit(
            self._model.parameters(),
            wait_s=0.0,
            prompt=self._prompt,
            format=self._start.session.format.encoding,
        )
        await self._admit_recogniser()

    async def _admit_recogniser(self) -> None:
        if self._recogniser is not None and (notice := await self._recogniser.admit(self._waker.wake)):
            self._notices.append(notice)

    def announce_draining(self, deadline_s: float) -> None:
        """Tell client and watchers."""
        self.audience.say(events.Info("server_draining", f"the server leaves within {deadline_s:g} s"))

    # What comes in.

    async def follow(self, message: bytes | str, socket: Socket) -> None:
        """Follow one event of the client.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """
        await self.obey(live.decode(message), socket)

    async def obey(self, event: live.ClientEvent, socket: Socket) -> None:
        """Follow an event of the client or of a watcher, which came over ``socket``.

        An answer can be 1 MiB long: while the client does not read, events that have one wait.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """
        if self.audience.is_congested and not isinstance(event, live.AppendAudio):
            await self._wait_for_room(socket)
        self._handle(event)

    def _handle(self, event: live.ClientEvent) -> None:
        match event:
            case live.AppendAudio():
                self._hear(event)
            case live.Mute():
                self._line.is_muted = True
                self.audience.say(events.InputAudioMuted(event.event_id))
            case live.Unmute():
                self._line.is_muted = False
                self.audience.say(events.InputAudioUnmuted(event.event_id))
            case live.Update():
                self._change(event.session)
                self.audience.say(events.SessionUpdated(self._shown(), event.event_id))
            case live.Close():
                self._begin_close(event)
            case live.Start() | live.ResumeSession():
                name = "session.start" if isinstance(event, live.Start) else "session.resume"
                words = f"type is {name}, and the session has started"
                raise _refusal(words, "session_already_started", event.event_id)
            case live.AcknowledgeEvents():
                self._acknowledge(event)
            case live.Unsupported():
                words = f"type is {event.type}, which the model {self._model.name} cannot follow"
                raise _refusal(words, "unsupported_event", event.event_id)

    def complain(self, error: AntiphonError) -> None:
        """Say what was wrong with an event; to a client that does not read, nothing."""
        if not self.audience.is_congested:
            self.audience.send(events.error_of(error))

    def _hear(self, event: live.AppendAudio) -> None:
        pcm = self.hear(event.audio, event.event_id)
        if pcm is not None and self.audience.watchers:
            self.audience.show(events.InputAudio(s16le_from_float(pcm)))

    def _heard(self, pcm: FloatArray) -> None:
        if self._recogniser is not None:
            self._recogniser.hear(pcm)

    def _change(self, change: SessionChange) -> None:
        if change.delegation is not None:
            self.config = replace(self.config, delegation=change.delegation)
        if change.triggers is not None:
            self.config = replace(self.config, triggers=change.triggers)

    def _acknowledge(self, event: live.AcknowledgeEvents) -> None:
        words = "type is session.acknowledge, and the connection did not ask for resume=1"
        raise _refusal(words, "unsupported_event", event.event_id)

    def _begin_close(self, event: live.Close) -> None:
        if self._close_asked is None:
            self._close_asked = event
            if self._recogniser is not None:
                self._recogniser.finish()
            self.begin_close(DRAIN_S)

    # What goes out.

    def _is_drained(self, session: CallSession, close_by_s: float) -> bool:
        is_written = self._recogniser is None or self._recogniser.is_idle
        return super()._is_drained(session, close_by_s) and (is_written or self._clock() >= close_by_s)

    def _tell_input(self) -> None:
        """Send what the caller has said."""
        if self._recogniser is not None:
            for told in self._recogniser.advance(may_tell=not self.audience.is_congested):
                if isinstance(told, Word):
                    before_s = self._heard_before_s
                    span = round(1000 * (before_s + told.start_s)), round(1000 * (before_s + told.end_s))
                    self.audience.say(events.InputTranscript(f" {told.text}", *span))
                elif isinstance(told, events.Info):
                    self.audience.say(told)

    def _begin(self) -> None:
        """There is a row: from now on the model hears."""
        self._usage_due_s = self._clock() + USAGE_PERIOD_S
        self._listen()
        self._greet()
        for notice in self._notices:
            self.audience.say(notice)

    def _greet(self) -> None:
        """Say that the session runs."""
        self.audience.say(events.SessionStarted(self._shown(), self._start.event_id))

    def _audio_of(self, data: bytes, _reply: FrameReply) -> events.OutputAudio:
        """One frame for the client."""
        return events.OutputAudio(data)

    def _frames_of(self, reply: FrameReply) -> list[bytes]:
        """Audio, then the text that is spoken in it."""
        audience, span = self.audience, self._line.span_ms(reply)
        parts: list[bytes] = []
        if (said := self._line.say(reply)) is not None:
            parts.append(audience.framed(self._audio_of(said.data, reply)))
            if audience.watchers:
                audience.show(events.OutputAudio(s16le_from_float(said.pcm), *span))
        if text := self._text_of(reply):
            transcript = events.OutputTranscript(text, *span)
            parts.append(audience.framed(transcript))
            audience.show(transcript)
        return parts

    def _end_audience(self) -> None:
        session = self._session
        if self._is_ready and self._ending is None and session is not None:  # the client left by itself
            lost = events.CloseReason.CONNECTION_LOST
            self.audience.show(events.SessionClosed(lost, self._shown(), self._seconds(session)))
        self.audience.end()

    def _shown(self) -> dict[str, object]:
        return self.config.shown(session_id=self.live_id, expires_at=self._expires_at)

    # Time and the end.

    def _usage(self, session: CallSession) -> events.UsageUpdated:
        lm, frames = self._model.engine.info.spec.lm, session.stats().frames_in
        ratio = None if lm is None else min(1.0, round(frames / lm.context, 3))
        return events.UsageUpdated(self._seconds(session), ratio)

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        self._patience.is_quiet = self._line.is_muted
        super()._watch(socket, session, now_s)
        if socket.is_congested():
            return
        if self._is_ready and now_s >= self._usage_due_s:
            self._usage_due_s += USAGE_PERIOD_S
            self.audience.say(self._usage(session))

    def _finish(self, session: CallSession) -> None:
        """All that was asked for is said."""
        asked = self._close_asked
        reason = events.CloseReason.EXPIRED if asked is None else events.CloseReason.CLOSE_REQUESTED
        self.audience.say(
            events.SessionClosed(
                reason, self._shown(), self._seconds(session), None if asked is None else asked.event_id
            )
        )
        self.end()

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self.audience.say(events.error_of(error))

    def _close_code(self, error: AntiphonError) -> int:
        return wire_form(error).openai_close


def _refusal(words: str, code: str, event_id: str | None) -> FieldError:
    return FieldError(words, param="type", code=code, event_id=event_id)

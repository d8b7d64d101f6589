"""One translation session: a model that repeats in another language what it hears, without turns."""

from __future__ import annotations

from typing import Final

from antiphon.errors import AntiphonError
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import FrameReply
from antiphon.protocol import translation
from antiphon.protocol.event_text import text_of
from antiphon.protocol.live_session import LiveFormat
from antiphon.protocol.realtime_events import error_event, event
from antiphon.protocol.translation import TranslationSession
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.duplex_call import DuplexCall
from antiphon.serve.routes.realtime_client import RealtimeClient
from antiphon.serve.transport.socket import Socket

DRAIN_S: Final = 10.0
"""How long a translation may go on after ``session.close``."""

LAG_S: Final = 3.0
"""How far a translation lies behind what it translates: so long its silence is no end."""


class TranslationCall(DuplexCall):
    """A conversation in events."""

    def __init__(
        self, services: Services, model: ServedModel, session: TranslationSession, *, caller: Caller = ANYBODY
    ) -> None:
        """Prepare ``session``."""
        super().__init__(services, model, LiveFormat(), LiveFormat(), caller=caller)
        self.session = session
        self._client = RealtimeClient()

    async def admit(self) -> None:
        """Ask for a row at once: this protocol has no queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """
        await self._submit(self._model.parameters(), wait_s=0.0, route="translations")

    async def run(self, socket: Socket) -> None:
        """Hold the conversation until one side ends it."""
        self._client.socket = socket
        await super().run(socket)

    async def follow(self, message: bytes | str, socket: Socket) -> None:
        """Follow one event of the client.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """
        asked = translation.decode(text_of(message))
        if self._client.is_congested and not isinstance(asked, translation.AppendAudio):
            await self._wait_for_room(socket)
        match asked:
            case translation.AppendAudio():
                self.hear(asked.audio, asked.event_id)
            case translation.Update():
                self.session = translation.change(self.session, asked.session)
                self._client.say([event("session.updated", session=self._shown())])
            case translation.Close():
                self.begin_close(DRAIN_S)

    def complain(self, error: AntiphonError) -> None:
        """Say what was wrong with an event; to a client that does not read, nothing."""
        if not self._client.is_congested:
            self._client.say([error_event(error)])

    def _begin(self) -> None:
        self._client.say([event("session.created", session=self._shown())])
        self._listen()

    def _frames_of(self, reply: FrameReply) -> list[bytes]:
        elapsed_ms, _ = self._line.span_ms(reply)
        events = []
        if (said := self._line.say(reply)) is not None:
            events.append(translation.output_audio(said.data, elapsed_ms))
        if text := self._text_of(reply):
            events.append(translation.output_transcript(text, elapsed_ms))
        return [self._client.framed(it) for it in events]

    def _is_drained(self, session: CallSession, close_by_s: float) -> bool:
        is_silent = super()._is_drained(session, close_by_s)
        return is_silent and self._clock() >= close_by_s - DRAIN_S + LAG_S

    def _shown(self) -> dict[str, object]:
        return self.session.shown(session_id=self._client.session_id, expires_at=self._client.expires_at)

    def _finish(self, _session: CallSession) -> None:
        self._client.say([event("session.closed")])
        self.end()

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self._client.say([error_event(error)])

    def _close_code(self, error: AntiphonError) -> int:
        return wire_form(error).openai_close

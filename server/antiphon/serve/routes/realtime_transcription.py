"""One transcription session of OpenAI Realtime: audio in, the words of each turn out. Nothing is dropped."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from antiphon.audio.codecs import make_decoder
from antiphon.audio.vad import SpeechDetector, SpeechStarted
from antiphon.errors import AntiphonError, AudioError, FieldError
from antiphon.protocol import kyutai, realtime
from antiphon.protocol.event_text import text_of
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.realtime_input import InputTurns
from antiphon.protocol.realtime_session import RealtimeSession, change
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.asr_stream import asr_parameters
from antiphon.serve.dialects.event_audio import line_of
from antiphon.serve.dialects.realtime_client import RealtimeClient, rules_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.heard import HeardConversation
from antiphon.serve.transport.socket import Socket


class RealtimeTranscription(HeardConversation):
    """A conversation of somebody who is heard and read back, turn by turn."""

    def __init__(
        self, services: Services, model: ServedModel, session: RealtimeSession, *, caller: Caller = ANYBODY
    ) -> None:
        """Prepare ``session``.

        Raises:
            UnsupportedError: the model has no text.
        """
        super().__init__(services, model, caller=caller)
        self.session = session
        self._client = RealtimeClient()
        self._rate = model.engine.info.spec.sample_rate
        self._turns = InputTurns(self._client.ids, self._client.items, has_transcript=True)
        self._detector = SpeechDetector(self._rate, rules_of(session.detection))
        self._decoder = make_decoder(line_of(session.input_format), self._rate)
        self._marks = itertools.count(1)
        self._patience.is_quiet = session.detection is None

    async def admit(self) -> None:
        """Ask for a row at once: this protocol has no queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError: there is none.
        """
        self._hearing.session = await self._submit(asr_parameters(self._model), wait_s=0.0, route="realtime")

    async def run(self, socket: Socket) -> None:
        """Hold the conversation until one side ends it."""
        self._client.socket = socket
        await super().run(socket)

    def _greet(self, _socket: Socket) -> None:
        # The client learns here that it may speak, and has its microphone to ask for.
        self._patience.begin(self._clock(), has_spoken=True)
        self._client.say([event("session.created", session=self._client.shown(self.session))])

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (message := await socket.receive_any()) is not None:
            try:
                asked = socket.timed(realtime.decode, text_of(message))
                if self._is_full or (
                    self._client.is_congested and not isinstance(asked, realtime.AppendAudio)
                ):
                    await self._wait_for_room(socket)
                self._client.say(self._answer(asked))
            except FieldError as error:
                self.complain(error)
            self._waker.wake()
            if self._is_others_turn():
                await asyncio.sleep(0)

    def _answer(self, asked: realtime.ClientEvent) -> list[Event]:
        match asked:
            case realtime.AppendAudio():
                return self._hear(asked)
            case realtime.Update():
                return self._update(asked)
            case realtime.Commit():
                committed = self._turns.commit(self._detector.now_ms, asked.event_id)
                self._detector.reset()
                return self._end_turn(committed)
            case realtime.Clear():
                self._detector.reset()
                return self._turns.clear()
            case realtime.CreateItem():
                return self._client.items.create(asked.item, asked.previous, asked.event_id)
            case realtime.RetrieveItem():
                return self._client.items.retrieve(asked.item_id, asked.event_id)
            case realtime.DeleteItem():
                return self._client.items.delete(asked.item_id, asked.event_id)
            case _:
                raise FieldError(
                    "type is for conversations, and this is a transcription session",
                    param="type",
                    code="unsupported_event",
                    event_id=asked.event_id,
                )

    def _hear(self, asked: realtime.AppendAudio) -> list[Event]:
        try:
            pcm = self._decoder.feed(asked.audio)
        except AudioError as error:
            raise FieldError(
                f"audio is {error}", param="audio", code=INVALID_VALUE, event_id=asked.event_id
            ) from error
        self._turns.appended()
        self._hearing.put(pcm)
        self._patience.heard(self._clock(), pcm.size / self._rate)
        events: list[Event] = []
        for found in self._detector.feed(pcm):
            if self.session.detection is None:
                continue
            if isinstance(found, SpeechStarted):
                events += self._turns.started(found.ms)
            else:
                events += self._end_turn(self._turns.stopped(found.ms))
        return events

    def _end_turn(self, committed: list[Event]) -> list[Event]:
        """The words so far are those of one turn: the marker comes back when all of them are written."""
        if committed:
            self._hearing.put(next(self._marks))
        return committed

    def _update(self, asked: realtime.Update) -> list[Event]:
        before, after = self.session, change(self.session, asked.session)
        named = after.transcription_model
        if named not in (None, before.model):
            raise FieldError(
                f"session.audio.input.transcription.model is {named!r}, and this session's is "
                f"{before.model!r}: another one is named in the query or in the path",
                param="session.audio.input.transcription.model",
                code="model_not_found",
                event_id=asked.event_id,
            )
        if before.input_format != after.input_format:
            self._decoder = make_decoder(line_of(after.input_format), self._rate)
        if before.detection != after.detection:
            self._detector.rules = rules_of(after.detection)
            self._detector.reset()
        self.session = after
        self._patience.is_quiet = after.detection is None  # a turn begins when the client says so
        return [event("session.updated", session=self._client.shown(after))]

    def complain(self, error: AntiphonError) -> None:
        """Say what was wrong with an event; to a client that does not read, nothing."""
        if not self._client.is_congested:
            self._client.say([error_event(error)])

    # What goes out.

    def _tell(self, _socket: Socket, messages: Sequence[kyutai.ServerMessage]) -> None:
        for message in messages:
            if isinstance(message, kyutai.Word):
                self._client.say(self._turns.word(message.text))
                if cut := self._turns.cut(self._detector.now_ms):
                    self._detector.reset()
                    self._client.say(self._end_turn(cut))
                    self._waker.wake()  # the marker is to be heard, whether or not audio follows
            elif isinstance(message, kyutai.Marker):
                self._client.say(self._turns.transcribed())

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self._client.say([error_event(error)])

    def _close_code(self, error: AntiphonError) -> int:
        return wire_form(error).openai_close

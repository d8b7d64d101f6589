"""One conversation of OpenAI Realtime with a full-duplex model.

The model hears and speaks all the time; :mod:`antiphon.protocol.realtime_reply` makes responses of what it
voices, :mod:`antiphon.protocol.realtime_input` turns of what it hears. The caller's voice informs the client
and cuts nothing by itself.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Final

from antiphon.audio.pcm import FloatArray
from antiphon.audio.vad import SpeechDetector, SpeechStarted
from antiphon.errors import AntiphonError, FieldError, SessionTimeoutError
from antiphon.ipc.engine_client import CallSession
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.models.spec import PipelineKind
from antiphon.models.transcript import Marked
from antiphon.models.words import Word
from antiphon.protocol import realtime
from antiphon.protocol.event_text import text_of
from antiphon.protocol.realtime_events import Event, error_event, event
from antiphon.protocol.realtime_input import InputTurns
from antiphon.protocol.realtime_reply import ReplyRules, ResponseRequest, Responses
from antiphon.protocol.realtime_session import RealtimeSession, change
from antiphon.protocol.wire_errors import wire_form
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.captions import Captions
from antiphon.serve.dialects.event_audio import line_of
from antiphon.serve.dialects.realtime_client import RealtimeClient, rules_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.duplex_call import DuplexCall
from antiphon.serve.routes.prompts import prompt_of_session
from antiphon.serve.transport.socket import Socket

SETTLE_S: Final = 1.0
"""How long the model waits for the client's first event, which may say who it is to be."""

MAX_OWED: Final = 8
"""Changes that are confirmed when the model hears; a client makes two or three before."""


class RealtimeCall(DuplexCall):
    """A conversation in turns, made of one without."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        session: RealtimeSession,
        *,
        rules: ReplyRules | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare ``session``; ``rules`` say when a response ends."""
        super().__init__(services, model, session.input_format, session.output.format, caller=caller)
        self.session = session
        spec = model.engine.info.spec
        self._client = client = RealtimeClient()
        self._replies = Responses(
            client.ids, client.items, session.output, frame_ms=round(spec.frame_ms), rules=rules
        )
        self._turns = InputTurns(client.ids, client.items)
        self._detector = SpeechDetector(spec.sample_rate, rules_of(session.detection))
        self._recogniser: Captions | None = None
        self._marks = itertools.count(1)
        self._is_updating = False
        self._updates_owed = 0  # not yet sent to the client
        self._settle_by_s = math.inf  # until then the model waits for its persona

    async def admit(self) -> None:
        """Ask for a row at once: this protocol has no queue.

        Raises:
            ServerFullError, DrainingError, SessionFailedError, UnsupportedError: there is none.
        """
        await self._submit(self._model.parameters(), wait_s=0.0, format=self.session.input_format.encoding)

    async def run(self, socket: Socket) -> None:
        """Hold the conversation until one side ends it."""
        self._client.socket = socket
        await super().run(socket)

    # What comes in.

    async def follow(self, message: bytes | str, socket: Socket) -> None:
        """Follow one event of the client.

        Raises:
            FieldError: it cannot be followed; the session goes on.
        """
        asked = socket.timed(realtime.decode, text_of(message))
        if self._client.is_congested and not isinstance(asked, realtime.AppendAudio):
            await self._wait_for_room(socket)  # an answer can be 1 MiB long
        self._settle_by_s = 0.0
        if isinstance(asked, realtime.Update):
            self._is_updating = True
            try:
                await self._update(asked)
            finally:
                self._is_updating = False
            self._settle()
        else:
            self._settle()
            self._client.say(self._answer(asked))

    def _answer(self, asked: realtime.ClientEvent) -> list[Event]:
        match asked:
            case realtime.AppendAudio():
                if self.hear(asked.audio, asked.event_id) is not None:
                    self._turns.appended()
            case realtime.Commit():
                self._detector.reset()
                return self._end_turn(self._turns.commit(self._detector.now_ms, asked.event_id))
            case realtime.Clear():
                return self._turns.clear()
            case realtime.CreateItem():
                return self._client.items.create(asked.item, asked.previous, asked.event_id)
            case realtime.RetrieveItem():
                return self._client.items.retrieve(asked.item_id, asked.event_id)
            case realtime.DeleteItem():
                return self._client.items.delete(asked.item_id, asked.event_id)
            case realtime.TruncateItem():
                place = {"content_index": asked.content_index, "audio_end_ms": asked.audio_end_ms}
                return [event("conversation.item.truncated", item_id=asked.item_id, **place)]
            case realtime.CreateResponse():
                return self._replies.create(self._wish(asked))
            case realtime.CancelResponse():
                return self._replies.cancel(asked.response_id, asked.event_id)
            case realtime.Unsupported():
                words = f"type is {asked.type}, which is for WebRTC and SIP"
                raise FieldError(words, param="type", code="unsupported_event", event_id=asked.event_id)
        return []

    def _wish(self, asked: realtime.CreateResponse) -> ResponseRequest:
        output = self.session.output
        if asked.modalities:
            output = replace(output, modalities=asked.modalities)
        return ResponseRequest(asked.metadata, output)

    async def _update(self, asked: realtime.Update) -> None:
        before, after = self.session, change(self.session, asked.session)
        if self._line.clock is not None and after.output.voice != before.output.voice:
            after = replace(after, output=replace(after.output, voice=before.output.voice))  # it is frozen
        if (before.input_format, before.output.format) != (after.input_format, after.output.format):
            self._line.set_formats(line_of(after.input_format), line_of(after.output.format))
        if before.detection != after.detection:
            self._detector.rules = rules_of(after.detection)
            if after.detection is None:
                self._detector.reset()
        self.session, self._replies.output = after, after.output
        await self._write_down(after.transcription_model)
        if self._line.clock is None and self._session is not None:
            await self._tell_persona(self._session, after, asked.event_id)
        self._updates_owed = min(self._updates_owed + 1, MAX_OWED)
        if self._line.clock is not None:
            self._confirm()

    def _confirm(self) -> None:
        """Say that the session is changed, once the model hears: a client takes it as its sign to speak."""
        owed, self._updates_owed = self._updates_owed, 0
        self._client.say([event("session.updated", session=self._client.shown(self.session))] * owed)

    async def _tell_persona(self, session: CallSession, after: RealtimeSession, event_id: str | None) -> None:
        """Say to the model who it is, before it hears anything."""
        prompt = await prompt_of_session(
            self._services, self._model, after.instructions, after.output.voice, event_id
        )
        if prompt is not None and self._line.clock is None:
            session.prime(prompt)

    async def _write_down(self, named: str | None) -> None:
        """Have a recogniser write what the caller says, if the client names one that is here."""
        fitting = (it for it in self._services.models if it.kind is PipelineKind.STT and it.name == named)
        model = next(fitting, None)
        if model is None or self._recogniser is not None:
            return
        rate = self._model.engine.info.spec.sample_rate
        self._recogniser = recogniser = Captions(model, rate, self._clock)
        self._at_end.append(recogniser.close)
        if (notice := await recogniser.admit(self._waker.wake)) is not None:
            self._provoked.info("no transcript", of="no transcript", reason=notice.message)
            return
        self._turns.transcribe()

    def _end_turn(self, committed: list[Event]) -> list[Event]:
        """A turn is over, if there was one: its transcript ends here."""
        if committed and self._recogniser is not None:
            self._recogniser.mark(next(self._marks))
        return committed

    def _tell_input(self) -> None:
        if self._recogniser is None:
            return
        for told in self._recogniser.advance(may_tell=not self._client.is_congested):
            if isinstance(told, Word):
                self._client.say(self._turns.word(told.text))
                if cut := self._turns.cut(self._detector.now_ms):
                    self._detector.reset()
                    self._client.say(self._end_turn(cut))
            elif isinstance(told, Marked):
                self._client.say(self._turns.transcribed())
            else:
                self._client.say(self._turns.failed(told.message))

    def complain(self, error: AntiphonError) -> None:
        """Say what was wrong with an event; to a client that does not read, nothing."""
        if not self._client.is_congested:
            self._client.say([error_event(error)])

    def _heard(self, pcm: FloatArray) -> None:
        detection = self.session.detection
        if self._recogniser is not None:
            self._recogniser.hear(pcm)
        for found in self._detector.feed(pcm):
            if detection is None:
                continue
            if isinstance(found, SpeechStarted):
                self._client.say(self._turns.started(found.ms))
                if detection.interrupt_response:
                    self._client.say(self._replies.interrupted())
            else:
                self._client.say(self._end_turn(self._turns.stopped(found.ms)))

    # What goes out.

    def _begin(self) -> None:
        self._settle_by_s = min(self._settle_by_s, self._clock() + SETTLE_S)
        self._client.say(
            [
                event("session.created", session=self._client.shown(self.session)),
                event(
                    "conversation.created",
                    conversation={"id": self._replies.conversation, "object": "realtime.conversation"},
                ),
            ]
        )

    def _advance(self, socket: Socket, session: CallSession) -> bool:
        has_more = super()._advance(socket, session)
        return self._settle() or has_more

    def _settle(self) -> bool:
        """Begin to listen once the client has said who the model is to be, or has said nothing for long."""
        if self._line.clock is not None or self._is_updating or not self._is_ready or self._session is None:
            return False
        now_s = self._clock()
        if now_s < self._settle_by_s:
            self._look_again_in(self._settle_by_s - now_s)
        elif self._session.state is SessionState.ACTIVE:
            self._listen()
            self._confirm()
            return True
        return False

    def _frames_of(self, reply: FrameReply) -> list[bytes]:
        said, text = self._line.say(reply), self._text_of(reply)
        audio = b"" if said is None else said.data
        is_speaking = self._line.is_speaking
        events: list[Event] = []
        if is_speaking and not self._replies.has_spoken and (stopped := self._detector.end()):
            events += self._end_turn(self._turns.stopped(stopped.ms))  # the model answers
        events += self._replies.frame(audio, is_speaking=is_speaking, text=text)
        return [self._client.framed(it) for it in events]

    # Time and the end.

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        self._patience.is_quiet = self.session.detection is None  # it sends nothing between its turns
        super()._watch(socket, session, now_s)

    def _finish(self, _session: CallSession) -> None:
        self._client.say(self._replies.finish())
        self.end(SessionTimeoutError("the session has had all its steps"))

    def _tell_error(self, _socket: Socket, error: AntiphonError) -> None:
        self._client.say([error_event(error)])

    def _close_code(self, error: AntiphonError) -> int:
        return wire_form(error).openai_close

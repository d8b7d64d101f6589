"""One WebSocket of ``/api/tts_streaming`` on the event loop: text in, speech out.

Speech is made only as fast as the peer takes it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from antiphon.audio.codecs import make_encoder
from antiphon.errors import AudioError, ProtocolError, SessionFailedError, UnsupportedError
from antiphon.ipc.engine_client import CallSession
from antiphon.models.prompt import Prompt
from antiphon.models.speaker import SpeakerShape
from antiphon.protocol import kyutai, kyutai_tts
from antiphon.protocol.kyutai_tts import Spoken, TtsQuery
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.dialogue import RECHECK_S, REPLIES_A_TURN
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.kyutai import KyutaiConversation
from antiphon.serve.routes.tts_stream import Piece, TtsStream
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket


class TtsConversation(KyutaiConversation):
    """A conversation of somebody whose text is said aloud."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: TtsQuery,
        voice: Prompt | None,
        *,
        wait_s: float = 0.0,
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        super().__init__(services, model, caller=caller, awaits="text")
        self._request, self._voice = request, voice
        self._wait_s = wait_s
        self._voicing = TtsStream(model, services.clock)
        self._encoder = make_encoder("ogg" if request.format.is_ogg else "pcm_f32le")
        self._at_end.append(self._encoder.close)
        self._said: deque[Piece] = deque()
        self._is_finished = False

    @property
    def words(self) -> int:
        """Words that the model was given so far."""
        return self._voicing.words

    async def admit(self) -> None:
        """Ask the engine for a session.

        Raises:
            ServerFullError, DrainingError: there is no row, and no place in the queue.
        """
        self._voicing.session = await self._submit(
            self._model.parameters(), wait_s=self._wait_s, prompt=self._voice, route="tts_streaming"
        )

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (data := await socket.receive_any()) is not None:
            message = socket.timed(kyutai_tts.decode_client, data)
            if isinstance(message, kyutai_tts.Text):
                await self._put(message.text, socket)
            else:
                self._handle(message)
            self._waker.wake()
            if self._is_others_turn():
                await asyncio.sleep(0)

    async def _put(self, text: str, socket: Socket) -> None:
        """Read a text as far as there is room, then as there is room for more."""
        pieces = self._voicing.put(text)
        while await self._services.reading.step(pieces):
            self._waker.wake()
            if self._is_full:
                await self._wait_for_room(socket)
            if self._ending is not None or socket.has_ended:
                break

    def _handle(self, message: kyutai_tts.Eos | kyutai_tts.Voice) -> None:
        if isinstance(message, kyutai_tts.Eos):
            self._voicing.finish()
        else:
            self._change_voice(message)

    def _change_voice(self, message: kyutai_tts.Voice) -> None:
        if self._voicing.has_text or self._voicing.is_ended:
            raise ProtocolError("Voice came after text; Voice must precede the first Text")
        shape = SpeakerShape.of(self._model.checkpoint.spec)
        if shape is None:
            raise ProtocolError(f"{self._model.name} has one built-in voice and accepts no other")
        assert self._session is not None
        try:
            self._session.prime(shape.prompt(message.array()))
        except UnsupportedError as error:
            raise ProtocolError(str(error)) from error

    @property
    def _is_full(self) -> bool:
        return self._voicing.is_full

    @property
    def _waits_for_us(self) -> bool:
        return self._voicing.has_text and not self._voicing.is_idle

    # What goes out.

    def _say(self, socket: Socket, *messages: kyutai.ServerMessage) -> None:
        """Formats of bare audio have no messages."""
        if self._request.format.is_packed:
            super()._say(socket, *messages)

    def _move(self, socket: Socket, _session: CallSession) -> bool:
        is_congested = socket.is_congested()
        self._said.extend(self._voicing.advance(may_take=not (is_congested or self._said)))
        payloads = self._some_of_what_was_said(REPLIES_A_TURN)
        if self._voicing.is_done and not self._said and not self._is_finished:
            self._is_finished = True
            payloads += self._packed(self._encoder.finish())
        if payloads:
            socket.write(b"".join(map(frame, payloads)))
        is_waiting = socket.is_congested() or (self._is_finished and socket.has_unsent)
        self._congested(is_waiting)
        self._look_again_in(RECHECK_S if is_waiting else None)
        if self._is_finished and not is_waiting:
            self.end()
        return bool(self._said)

    def _some_of_what_was_said(self, pieces: int) -> list[bytes]:
        now = [self._said.popleft() for _ in range(min(pieces, len(self._said)))]
        samples = sum(piece.size for piece in now if not isinstance(piece, Spoken))
        self._patience.heard(self._clock(), samples / self._model.checkpoint.spec.sample_rate)
        return [payload for piece in now for payload in self._payloads(piece)]

    def _write_taken(self, socket: Socket) -> None:
        if self._said:
            socket.write(b"".join(map(frame, self._some_of_what_was_said(len(self._said)))))

    def _payloads(self, piece: Piece) -> list[bytes]:
        """What stands for a piece in the caller's format."""
        if isinstance(piece, Spoken):
            return [kyutai_tts.encode_server(piece)] if self._request.format.is_packed else []
        clipped = piece.clip(-1.0, 1.0)
        if self._request.format.is_packed and not self._request.format.is_ogg:
            return [kyutai.encode(kyutai.Audio(clipped))]
        try:
            return self._packed(self._encoder.encode(clipped))
        except AudioError as error:  # as a word for what a peer sends it would be blamed on the peer
            raise SessionFailedError(f"the model's audio cannot be encoded: {error}") from error

    def _packed(self, payloads: list[bytes]) -> list[bytes]:
        """Encoded audio, in messages where the format has them."""
        if not self._request.format.is_packed:
            return payloads
        return [kyutai.encode(kyutai.OggOpus(page)) for page in payloads]

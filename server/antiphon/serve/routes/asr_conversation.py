"""One WebSocket of ``/api/asr-streaming`` on the event loop: audio and markers in, a transcript out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from antiphon.audio.codec import Decoder
from antiphon.audio.codecs import make_decoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.asr_stream import asr_parameters
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.heard import HeardConversation
from antiphon.serve.routes.kyutai import KyutaiConversation
from antiphon.serve.transport.socket import Socket


class AsrConversation(HeardConversation, KyutaiConversation):
    """A conversation in Kyutai's protocol of recognition."""

    def __init__(
        self, services: Services, model: ServedModel, *, wait_s: float = 0.0, caller: Caller = ANYBODY
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        super().__init__(services, model, caller=caller)
        self._wait_s = wait_s
        self._ear: Decoder | None = None
        self._has_audio = False

    async def admit(self) -> None:
        """Ask the engine for a session.

        Raises:
            ServerFullError, DrainingError: there is no row, and no place in the queue.
        """
        self._hearing.session = await self._submit(
            asr_parameters(self._model), wait_s=self._wait_s, route="asr-streaming"
        )

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (data := await socket.receive()) is not None:
            message = socket.timed(kyutai.decode_client, data)
            if isinstance(message, kyutai.OggOpus):
                await self._decode(message.data, socket)
            else:
                self._handle(message)
                await self._pass_on(socket)
            if self._is_others_turn():
                await asyncio.sleep(0)

    def _handle(self, message: kyutai.Init | kyutai.Audio | kyutai.Marker) -> None:
        if isinstance(message, kyutai.Marker):
            self._hearing.put(message.id)
        elif isinstance(message, kyutai.Audio):
            self._has_audio = True
            self._put(message.pcm)
        elif self._has_audio:
            raise ProtocolError("Init came after audio; a session begins once")
        # Ready goes to every client, without a request.

    async def _decode(self, data: bytes, socket: Socket) -> None:
        """Decode a piece of Ogg, a step at a time, as there is room."""
        self._has_audio = True
        if self._ear is None:
            self._ear = make_decoder("ogg")
            self._at_end.append(self._ear.close)
        self._ear.put(data)
        while self._ending is None and not socket.has_ended and (pcm := self._ear.step()) is not None:
            self._put(pcm)
            await self._pass_on(socket)
            if self._ear.has_more:
                await asyncio.sleep(0)

    def _put(self, pcm: FloatArray) -> None:
        self._hearing.put(np.clip(pcm, -1.0, 1.0))
        self._patience.heard(self._clock(), pcm.size / self._model.engine.info.spec.sample_rate)

    async def _pass_on(self, socket: Socket) -> None:
        """Have it moved to the engine, and wait for room if there is none for more."""
        self._waker.wake()
        if self._is_full:
            await self._wait_for_room(socket)

    # What goes out.

    def _tell(self, socket: Socket, messages: Sequence[kyutai.ServerMessage]) -> None:
        self._say(socket, *messages)

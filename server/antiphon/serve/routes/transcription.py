"""One WebSocket of ``/api/asr-streaming`` on the event loop: audio and markers in, a transcript out."""

from __future__ import annotations

from typing import Final

import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.errors import ProtocolError
from antiphon.ipc.session import Session
from antiphon.protocol import kyutai
from antiphon.serve.hosting.conversation import RECHECK_S
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.oggin import OggInput
from antiphon.serve.routes.hearing import Hearing, hearing_parameters
from antiphon.serve.routes.kyutai import KyutaiConversation
from antiphon.serve.transport.socket import Socket

MAX_PENDING_SAMPLES: Final = 24_000
"""A second that the engine has no room for yet; beyond, the socket is not read."""


class Transcription(KyutaiConversation):
    """A conversation of somebody who is heard and read back."""

    def __init__(
        self, services: Services, model: ServedModel, *, wait_s: float = 0.0, caller: str = ""
    ) -> None:
        """Prepare. :meth:`admit` gets it a session, then :meth:`run` holds the conversation."""
        super().__init__(services, model, caller=caller)
        self._wait_s = wait_s
        self._hearing = Hearing(model, services.clock)
        self._ogg: OggInput | None = None
        self._has_audio = False

    def admit(self) -> None:
        """Ask the engine for a session.

        Raises:
            ServerFullError, DrainingError: there is no row, and no place in the queue.
        """
        self._hearing.session = self._submit(
            hearing_parameters(self._model),
            wait_s=self._wait_s,
            notify=self._lane.wake,
            route="asr-streaming",
        )

    def _release(self) -> None:
        if self._ogg is not None:
            self._ogg.close()

    # What comes in.

    async def _read(self, socket: Socket) -> None:
        while self._ending is None and (data := await socket.receive()) is not None:
            self._handle(kyutai.decode_client(data))
            self._patience.heard(socket.seen_s)
            self._lane.wake()
            if self._is_full:
                await self._wait_for_room(socket)

    def _handle(self, message: kyutai.ClientMessage) -> None:
        if isinstance(message, kyutai.Init):
            if self._has_audio:
                raise ProtocolError("Init came after audio; a session begins once")
            return  # everybody is told Ready without asking
        if isinstance(message, kyutai.Marker):
            self._put(message.id)
            return
        self._has_audio = True
        if isinstance(message, kyutai.Audio):
            self._put(np.clip(message.pcm, -1.0, 1.0))
            return
        if self._ogg is None:
            self._ogg = OggInput(self._services.pool, self._lane.wake)
        self._ogg.put(message.data)

    def _put(self, item: FloatArray | int) -> None:
        """Audio or a marker, behind the Opus that came before it."""
        if self._ogg is None:
            self._hearing.put(item)
        else:
            self._ogg.put(item)

    @property
    def _is_full(self) -> bool:
        is_full = self._hearing.pending_samples > MAX_PENDING_SAMPLES
        return is_full or (self._ogg is not None and self._ogg.is_full)

    @property
    def _waits_for_us(self) -> bool:
        return not self._hearing.is_idle

    # What goes out.

    def _move(self, socket: Socket, session: Session) -> None:
        if self._ogg is not None:
            if self._hearing.pending_samples <= MAX_PENDING_SAMPLES:
                for item in self._ogg.collect():
                    self._hearing.put(item)
            if self._ogg.error is not None:
                raise self._ogg.error
        is_congested = socket.is_congested()
        told = self._hearing.advance(may_tell=not is_congested)
        if told.messages:
            self._say(socket, *told.messages)
        now_s = self._clock()
        for reply in told.replies:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))
        self._congested(is_congested)
        self._look_again_in(RECHECK_S if is_congested else self._hearing.quiet_in_s())

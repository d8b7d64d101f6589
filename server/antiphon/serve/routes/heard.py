"""A conversation of somebody who is heard and read back, whatever its protocol."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from antiphon.ipc.engine_client import CallSession
from antiphon.protocol import kyutai
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.calls.asr_stream import AsrStream
from antiphon.serve.hosting.dialogue import RECHECK_S
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.lossless import LosslessConversation
from antiphon.serve.transport.socket import Socket

MAX_PENDING_SAMPLES: Final = 24_000
"""A second that the engine has no room for yet; beyond, the socket is not read."""


class HeardConversation(LosslessConversation):
    """The way of the caller's audio to its words."""

    def __init__(self, services: Services, model: ServedModel, *, caller: Caller = ANYBODY) -> None:
        """Prepare.

        Raises:
            UnsupportedError: the model has no text.
        """
        super().__init__(services, model, caller=caller)
        self._hearing = AsrStream(model, services.clock)

    @property
    def words(self) -> int:
        """Words heard so far."""
        return self._hearing.words

    @abstractmethod
    def _tell(self, socket: Socket, messages: Sequence[kyutai.ServerMessage]) -> None:
        """Send what became certain of what the caller has said."""

    @property
    def _is_full(self) -> bool:
        return self._hearing.pending_samples > MAX_PENDING_SAMPLES

    @property
    def _waits_for_us(self) -> bool:
        return self._hearing.has_audio_waiting

    def _move(self, socket: Socket, session: CallSession) -> bool:
        is_congested = socket.is_congested()
        told = self._hearing.advance(may_tell=not is_congested)
        if told.events:
            self._tell(socket, told.messages)
        now_s = self._clock()
        for reply in told.replies:
            session.sent(reply, now_s, socket.stalled_s(reply.replied_s))
        self._congested(is_congested)
        self._look_again_in(RECHECK_S if is_congested else self._hearing.quiet_in_s())
        return False

    def _write_taken(self, socket: Socket) -> None:
        """Words are written as they are taken."""

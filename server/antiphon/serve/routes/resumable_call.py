"""A call of /api/chat that outlives its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from antiphon.errors import (
    AntiphonError,
    SessionError,
    SessionTimeoutError,
)
from antiphon.ipc.port import CallSession
from antiphon.ipc.values import FrameReply
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi, resume
from antiphon.protocol.chat import ChatRequest
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.resumable import CLAIM_S, ResumableConversation, missed_frames
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.call import ChatCall
from antiphon.serve.routes.routing import check_upgrade
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket


class ResumableChatCall(ResumableConversation, ChatCall):
    """A call that another connection of its client can take over."""

    def __init__(
        self,
        services: Services,
        model: ServedModel,
        request: ChatRequest,
        prompt: Prompt | None = None,
        *,
        caller: Caller = ANYBODY,
    ) -> None:
        """Prepare, as a call."""
        super().__init__(services, model, request, prompt, caller=caller)
        self._keep()

    # Going on with a call of another connection.

    async def take_up(self, socket: Socket) -> None:
        """Read the claim, get the call, and tell the client what it lacks.

        Raises:
            SessionTimeoutError: there is no claim.
            ProtocolError: it cannot be understood.
            SessionError: there is no such call.
        """
        try:
            async with asyncio.timeout(CLAIM_S):
                message = await socket.receive()
        except TimeoutError:
            raise SessionTimeoutError(f"no claim to a call within {CLAIM_S:g} s") from None
        if message is None:
            raise SessionError("the client has left without a claim")
        claim = resume.decode_claim(message)
        session, found, token = await self._claim(claim)
        self._record(found.call)
        event = events.resumed(
            session=found.call,
            token=resume.token_text(token),
            input_frame=session.next_frame,
            missed_frames=missed_frames(claim, found),
            replay_from=found.replay_from,
            worker=self._services.config.worker,
        )
        notes = b"".join(frame(data) for _, data in found.notes)
        socket.write(frame(moshi.encode(event)) + notes)
        self._is_ready = True
        self._patience.begin(self._clock())

    # What must arrive.

    def _tell_ready(self, session: CallSession, resume: Mapping[str, Any] | None = None) -> None:
        super()._tell_ready(session, resume or self._arm(session))

    def _framed(self, message: moshi.Message) -> bytes:
        data = resume.encode_numbered(self._numbering.seq, moshi.encode(message))
        self._numbering.number(data)
        return frame(data)

    def _is_news(self, reply: FrameReply) -> bool:
        return reply.frame >= self._numbering.first_news

    def _before_write(self, session: CallSession, replies: Sequence[FrameReply]) -> None:
        self._numbering.note(session, replies[-1].frame + 1 if replies else 0)

    def _heed(self, message: moshi.Unknown) -> None:
        if message.tag == resume.NUMBERED and self._session is not None:
            self._session.acknowledge(resume.decode_ack(message.data).seq)

    # Without a connection.

    def _is_heeded(self, data: bytes) -> bool:
        return not self._is_detached and super()._is_heeded(data)

    def _hear(self, received_s: float, *, all_of_it: bool = False) -> bool:
        return not self._is_detached and super()._hear(received_s, all_of_it=all_of_it)

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        if self._is_watched(socket):
            super()._watch(socket, session, now_s)

    async def refuse(self, socket: Socket, error: AntiphonError) -> None:
        """Say why there is nothing to go on with, and close."""
        self._provoked.info("not resumed", of="not resumed", reason=str(error))
        self._socket = socket
        self._tell_error(socket, error)
        await socket.close(self._close_code(error), str(error))


async def resume_chat(
    request: web.Request, services: Services, model: ServedModel, chat: ChatRequest, caller: Caller
) -> web.StreamResponse:
    """One WebSocket that resumes a call, for as long as it lasts.

    Raises:
        web.HTTPException: it is none.
    """
    await check_upgrade(request, model, wait_s=chat.wait_s)
    call = ResumableChatCall(services, model, chat, caller=caller)
    try:
        socket = await Socket.open(request, services.config.limits, services.clock)
        with model.metrics.sockets.track_inprogress():
            try:
                await call.take_up(socket)
            except AntiphonError as error:
                await call.refuse(socket, error)
                model.metrics.closed(socket.close_code)
            else:
                await call.run(socket)
        return socket.response
    finally:
        call.abandon()

"""A call of /api/chat that outlives its connection: it numbers what must arrive, and waits when it is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from antiphon.errors import (
    AntiphonError,
    DrainingError,
    MovedError,
    ReplacedError,
    ResumeError,
    SessionError,
    SessionTimeoutError,
)
from antiphon.ipc.port import CallSession
from antiphon.ipc.resumption import Note, ResumeClaim
from antiphon.ipc.values import FrameReply, SessionState
from antiphon.models.prompt import Prompt
from antiphon.protocol import events, moshi, resume
from antiphon.protocol.chat import ChatRequest
from antiphon.serve.access.callers import ANYBODY, Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.call import ChatCall
from antiphon.serve.routes.routing import check_upgrade
from antiphon.serve.transport.frames import frame
from antiphon.serve.transport.socket import Socket

CLAIM_S: Final = 2.0
"""For the first message of a connection that resumes; it takes no row before."""

LATE_S: Final = 60.0
"""Beyond the window: a client's clock may run so far ahead of the audio that it has sent."""


class ResumableChatCall(ChatCall):
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
        self._window_s = services.config.engine.resume_window_s
        self._replay_frames = round(resume.REPLAY_MS / model.engine.info.spec.frame_ms)
        self._seq = 0
        self._unnoted: list[Note] = []
        self._noted_frame = 0  # the engine has noted that the text of earlier frames was sent
        self._first_news = 0  # the text of earlier frames was sent on another connection
        self._is_detached = False
        self._is_parted = asyncio.Event()

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
        claim, token = resume.decode_claim(message), resume.new_token()
        asked = ResumeClaim(
            key=resume.token_key(claim.token),
            new_key=resume.token_key(token),
            owner=self.caller.name,
            seq=claim.seq,
            frame=claim.frame,
            replay_frames=self._replay_frames,
        )
        self._session = session = await self._model.engine.resume(asked, notify=self._waker.wake)
        self._go_on(socket, session, claim, token)

    def _go_on(self, socket: Socket, session: CallSession, claim: resume.Claim, token: bytes) -> None:
        found, spec = session.resumption, self._model.engine.info.spec
        assert found is not None
        self._log = self._log.bind(session=found.call)
        self._provoked = self._provoked.bind(session=found.call)
        self._record(found.call)
        furthest = session.next_frame + round((self._window_s + LATE_S) * 1000 / spec.frame_ms)
        session.skip_to(min(claim.input_frame, furthest))
        missed = found.replay_from - claim.frame - 1 if claim.frame >= 0 else 0
        event = events.resumed(
            session=found.call,
            token=resume.token_text(token),
            input_frame=session.next_frame,
            missed_frames=max(0, missed),
            replay_from=found.replay_from,
            worker=self._services.config.worker,
        )
        notes = b"".join(frame(data) for _, data in found.notes)
        socket.write(frame(moshi.encode(event)) + notes)
        self._seq, self._noted_frame, self._first_news = found.next_seq, found.told_frame, found.told_frame
        self._is_ready = True
        self._patience.begin(self._clock())
        self._log.info("session resumed", missed=max(0, missed), messages=len(found.notes))

    # What must arrive.

    def _tell_ready(self, session: CallSession, resume_: Mapping[str, Any] | None = None) -> None:
        if self._window_s > 0:
            token = resume.new_token()
            session.arm(resume.token_key(token), self.caller.name)
            resume_ = {
                "token": resume.token_text(token),
                "window_s": self._window_s,
                "replay_ms": resume.REPLAY_MS,
            }
            if self._services.config.worker:
                resume_["worker"] = self._services.config.worker
        super()._tell_ready(session, resume_)

    def _framed(self, message: moshi.Message) -> bytes:
        data = resume.encode_numbered(self._seq, moshi.encode(message))
        self._unnoted.append((self._seq, data))
        self._seq += 1
        return frame(data)

    def _is_news(self, reply: FrameReply) -> bool:
        return reply.frame >= self._first_news

    def _before_write(self, session: CallSession, replies: Sequence[FrameReply]) -> None:
        told_frame = replies[-1].frame + 1 if replies else self._noted_frame
        if self._unnoted or told_frame - self._noted_frame >= self._replay_frames:
            session.note(tuple(self._unnoted), told_frame)
            self._unnoted.clear()
            self._noted_frame = max(told_frame, self._noted_frame)

    def _heed(self, message: moshi.Unknown) -> None:
        if message.tag == resume.NUMBERED and self._session is not None:
            self._session.acknowledge(resume.decode_ack(message.data).seq)

    # Without a connection.

    async def _part(self, socket: Socket) -> None:
        session = self._session
        if session is None or self._ending is not None or not (self._is_ready and socket.was_cut):
            return
        if not self._is_detached:
            self._log.info("session detached", window_s=self._window_s)
            self._detach(session)
        await self._is_parted.wait()

    def _detach(self, session: CallSession) -> None:
        """From here on nothing of the session is touched; its end says where the call is."""
        self._is_detached = True
        session.detach()

    def _is_heeded(self, data: bytes) -> bool:
        return not self._is_detached and super()._is_heeded(data)

    def _hear(self, received_s: float, *, all_of_it: bool = False) -> bool:
        return not self._is_detached and super()._hear(received_s, all_of_it=all_of_it)

    @property
    def can_move(self) -> bool:
        """Its client can go on with it at another worker."""
        return self._window_s > 0

    def announce_draining(self, deadline_s: float) -> None:
        """Say it, or end: a draining server resumes no call."""
        if self._is_detached:
            self.end(DrainingError("the server is leaving"))
        else:
            super().announce_draining(deadline_s)

    def _turn(self) -> bool:
        socket, session = self._socket, self._session
        if session is not None and session.is_moving and self._ending is None and not self._is_detached:
            self._detach(session)
        if not self._is_detached:
            return super()._turn()
        if session is None or session.state is SessionState.CLOSED:
            self._is_parted.set()
            if session is not None and socket is not None and not socket.was_cut:
                self.end(session.error)
        return False

    def _watch(self, socket: Socket, session: CallSession, now_s: float) -> None:
        if self._is_detached:
            return
        if socket.silent_s() > self._limits.liveness_timeout_s:
            socket.cut()  # the client may come back another way
        else:
            super()._watch(socket, session, now_s)

    def _tell_error(self, socket: Socket, error: AntiphonError) -> None:
        match error:
            case ReplacedError():
                self._say(events.replaced())
            case MovedError():
                self._say(events.moved(error.worker))
            case ResumeError():
                self._say(events.resume_failed(error.reason))
            case _:
                super()._tell_error(socket, error)

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

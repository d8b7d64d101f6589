"""A conversation that outlives its connection: it numbers what must arrive, and waits when it is cut."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from antiphon.errors import DrainingError, ResumeError
from antiphon.ipc.port import CallSession
from antiphon.ipc.resumption import Note, ResumeClaim, Resumption
from antiphon.ipc.values import SessionState
from antiphon.protocol import resume
from antiphon.serve.hosting.dialogue import SocketConversation
from antiphon.serve.transport.socket import Socket

CLAIM_S: Final = 2.0
"""For the first message of a connection that resumes; it takes no row before."""

LATE_S: Final = 60.0
"""Beyond the window: a client's clock may run so far ahead of the audio that it has sent."""


class Numbering:
    """What of a call was numbered, and how much of it the engine has noted."""

    def __init__(self, note_every_frames: int) -> None:
        """Begin a call; the engine hears of frames without text so often."""
        self.seq = 0
        self._every = note_every_frames
        self._unnoted: list[Note] = []
        self._noted_frame = 0  # the engine has noted that the text of earlier frames was sent
        self.first_news = 0  # the text of earlier frames was sent on another connection

    def go_on(self, found: Resumption) -> None:
        """Go on with a call of another connection."""
        self.seq, self._noted_frame, self.first_news = found.next_seq, found.told_frame, found.told_frame

    def number(self, data: bytes) -> None:
        """These bytes are the next numbered message."""
        self._unnoted.append((self.seq, data))
        self.seq += 1

    def note(self, session: CallSession, told_frame: int = 0) -> None:
        """Messages are about to be sent, and with them the text of replies to frames below ``told_frame``."""
        if self._unnoted or told_frame - self._noted_frame >= self._every:
            self._noted_frame = max(told_frame, self._noted_frame)
            session.note(tuple(self._unnoted), self._noted_frame)
            self._unnoted.clear()


class ResumableConversation(SocketConversation):
    """A conversation that another connection of its client can take over; mixed in before a protocol's."""

    _numbering: Numbering
    _is_parted: asyncio.Event
    _is_detached = False

    def _keep(self) -> None:
        """Be resumable, from the constructor on."""
        self._window_s = self._services.config.engine.resume_window_s
        self._replay_frames = round(resume.REPLAY_MS / self._model.engine.info.spec.frame_ms)
        self._numbering, self._is_parted = Numbering(self._replay_frames), asyncio.Event()

    # The token, and the claim to a call of another connection.

    def _terms(self, token: bytes) -> dict[str, Any]:
        """What a client is told of how it may resume the call."""
        worker = self._services.config.worker
        return {
            "token": resume.token_text(token),
            "window_s": self._window_s,
            "replay_ms": resume.REPLAY_MS,
            **({"worker": worker} if worker else {}),
        }

    def _arm(self, session: CallSession) -> dict[str, Any] | None:
        """Let the call be resumed; None where this server keeps none."""
        if self._window_s <= 0:
            return None
        token = resume.new_token()
        session.arm(resume.token_key(token), self.caller.name)
        return self._terms(token)

    async def _claim(self, claim: resume.Claim) -> tuple[CallSession, Resumption, bytes]:
        """The call that is claimed, what is to be said again of it, and its next token.

        Raises:
            SessionError: there is no such call.
        """
        token = resume.new_token()
        asked = ResumeClaim(
            key=resume.token_key(claim.token),
            new_key=resume.token_key(token),
            owner=self.caller.name,
            seq=claim.seq,
            frame=claim.frame,
            replay_frames=self._replay_frames,
        )
        self._session = session = await self._find(asked)
        self._observe(session)
        found, spec = session.resumption, self._model.engine.info.spec
        assert found is not None
        self._log = self._log.bind(session=found.call)
        self._provoked = self._provoked.bind(session=found.call)
        furthest = session.next_frame + round((self._window_s + LATE_S) * 1000 / spec.frame_ms)
        session.skip_to(min(claim.input_frame, furthest))
        self._first_frame = session.next_frame - found.unrecorded_in
        self._first_reply = session.stats().frames_out + found.replayed
        self._unrecorded_out = found.unrecorded_out
        self._numbering.go_on(found)
        missed = missed_frames(claim, found)
        self._log.info("session resumed", missed=missed, messages=len(found.notes))
        return session, found, token

    async def _find(self, asked: ResumeClaim) -> CallSession:
        """The session that is claimed, of whichever version of the model has it.

        Raises:
            SessionError: there is none.
        """
        desk = self._services.canary
        versions = (self._model,) if desk is None else desk.versions(self._model)
        for model in versions:
            try:
                session = await model.engine.resume(asked, notify=self._waker.wake)
            except ResumeError as error:
                if error.reason != "unknown" or model is versions[-1]:
                    raise
            else:
                self._model = model
                return session
        raise ResumeError("unknown: there is no such call")

    # Without a connection.

    @property
    def _may_wait(self) -> bool:
        """Whether the call waits for another connection when this one breaks."""
        return True

    async def _part(self, socket: Socket) -> None:
        session = self._session
        if session is None or self._ending is not None or not (self._is_ready and socket.was_cut):
            return
        if not self._may_wait:
            return
        if not self._is_detached:
            self._log.info("session detached", window_s=self._window_s)
            self._detach(session)
        await self._is_parted.wait()

    def _detach(self, session: CallSession) -> None:
        """From here on nothing of the session is touched; its end says where the call is."""
        self._is_detached = True
        session.detach()

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

    def _is_watched(self, socket: Socket) -> bool:
        """Whether there is a connection to look at; one without a sign of life is cut."""
        if self._is_detached:
            return False
        if socket.silent_s() > self._limits.liveness_timeout_s:
            socket.cut()  # the client may come back another way
            return False
        return True


def missed_frames(claim: resume.Claim, found: Resumption) -> int:
    """Frames of audio that the client never gets."""
    return max(0, found.replay_from - claim.frame - 1) if claim.frame >= 0 else 0

"""The part of resumption that belongs to a connection: numbered messages, the claim, and the wait for another
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from antiphon.config import ServerConfig
from antiphon.errors import ResumeError
from antiphon.ipc.engine_client import CallSession, Notify
from antiphon.ipc.values import Note, ResumeClaim, Resumption, SessionState
from antiphon.log import Log
from antiphon.protocol import resume
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services

CLAIM_S: Final = 2.0
"""Seconds for the first message of a connection that resumes a call; before it the connection has no row."""

LATE_S: Final = 60.0
"""Seconds beyond the window: a client's clock may be this far ahead of the audio that it has sent."""


@dataclass(frozen=True, slots=True)
class ResumedCall:
    """The call that this one continues, and the terms of the next resumption."""

    claim: resume.Claim
    found: Resumption
    terms: dict[str, Any]

    @property
    def missed_frames(self) -> int:
        """The number of frames of audio that the client will never receive."""
        return max(0, self.found.replay_from - self.claim.frame - 1) if self.claim.frame >= 0 else 0


class OutboundSequence:
    """Numbers a call's messages, and tracks how many the engine has stored.

    ``kept`` is for the next connection of the call: it is sent to the engine with the next messages.
    """

    def __init__(self, note_every_frames: int) -> None:
        """Begin a call; the engine gets the number of frames without text at this interval."""
        self.seq, self.kept = 0, b""
        self.first_news = 0  # the text of earlier frames was sent on another connection
        self._every = note_every_frames
        self._unnoted: list[Note] = []
        self._noted_kept = self.kept
        self._noted_frame = 0  # the engine knows that the text of earlier frames was sent

    def go_on(self, found: Resumption) -> None:
        """Continue the numbers of a call that had another connection."""
        self.seq, self._noted_frame, self.first_news = found.next_seq, found.text_frame, found.text_frame
        self.kept = self._noted_kept = found.kept

    def add(self, data: bytes) -> None:
        """Number these bytes as the next message."""
        self._unnoted.append((self.seq, data))
        self.seq += 1

    def note(self, session: CallSession, text_frame: int) -> None:
        """Store messages in the engine before they are sent, with the text of replies to frames below
        ``text_frame``."""
        is_news = bool(self._unnoted) or self.kept != self._noted_kept
        if is_news or text_frame - self._noted_frame >= self._every:
            self._noted_frame = max(text_frame, self._noted_frame)
            self._noted_kept = self.kept
            session.note(tuple(self._unnoted), self._noted_frame, self.kept)
            self._unnoted.clear()


class CallResume:
    """The resumption of one call, for a ``caller`` and a model of ``frame_ms``."""

    def __init__(self, services: Services, caller: Caller, frame_ms: float) -> None:
        """Start with a call that cannot be resumed yet."""
        self._services, self._caller, self._frame_ms = services, caller, frame_ms
        self.window_s = services.config.engine.resume_window_s
        self._replay_frames = round(resume.REPLAY_MS / frame_ms)
        self.sequence = OutboundSequence(self._replay_frames)
        self.is_detached = False
        self._is_parted = asyncio.Event()

    def arm(self, session: CallSession) -> dict[str, Any] | None:
        """Make the call resumable; returns the client's terms, None if the server keeps no calls without a
        connection.
        """
        if self.window_s <= 0:
            return None
        token = resume.new_token()
        session.arm(resume.token_key(token), self._caller.name)
        return resume_terms(self._services.config, token)

    async def claim(
        self, claim: resume.Claim, versions: Sequence[ServedModel], notify: Notify
    ) -> tuple[ServedModel, CallSession, ResumedCall]:
        """Claim the call, which may belong to any of these versions of a model.

        Raises:
            SessionError: the call does not exist.
        """
        token = resume.new_token()
        asked = ResumeClaim(
            key=resume.token_key(claim.token),
            new_key=resume.token_key(token),
            owner=self._caller.name,
            seq=claim.seq,
            frame=claim.frame,
            replay_frames=self._replay_frames,
        )
        model, session = await _find(asked, versions, notify)
        found = session.resumption
        assert found is not None
        furthest = session.next_frame + round((self.window_s + LATE_S) * 1000 / self._frame_ms)
        session.skip_to(min(claim.input_frame, furthest))
        self.sequence.go_on(found)
        return model, session, ResumedCall(claim, found, resume_terms(self._services.config, token))

    def look(self, session: CallSession, *, is_ending: bool) -> bool:
        """Detach the call if another worker takes it; returns whether the call is detached.

        The session of a detached call must not be used.

        The error of the session names the call's new place.
        """
        if session.is_moving and not is_ending and not self.is_detached:
            self._detach(session)
        if self.is_detached and session.state is SessionState.CLOSED:
            self._is_parted.set()
        return self.is_detached

    async def wait(self, session: CallSession, log: Log) -> None:
        """Wait, after the connection has ended, until another connection resumes the call or until none
        can.
        """
        if not self.is_detached:
            log.info("session detached", window_s=self.window_s)
            self._detach(session)
        await self._is_parted.wait()

    def _detach(self, session: CallSession) -> None:
        self.is_detached = True
        session.detach()


def resume_terms(config: ServerConfig, token: bytes) -> dict[str, Any]:
    """The terms of resumption for a client."""
    return {
        "token": resume.token_text(token),
        "window_s": config.engine.resume_window_s,
        "replay_ms": resume.REPLAY_MS,
        **({"worker": config.worker} if config.worker else {}),
    }


async def _find(
    asked: ResumeClaim, versions: Sequence[ServedModel], notify: Notify
) -> tuple[ServedModel, CallSession]:
    for model in versions:
        try:
            return model, await model.engine.resume(asked, notify=notify)
        except ResumeError as error:
            if error.reason != "unknown" or model is versions[-1]:
                raise
    raise ResumeError("unknown: there is no such call")

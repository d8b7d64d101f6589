"""How a call outlives its connection whose state is no row's: a voice agent's, in its front end's process.

The call stays as it is, with its rows, its participant and its dialect, and waits; another connection of its
client takes it over. The client's side is that of :mod:`antiphon.protocol.resume`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from typing import Any, Final

from antiphon.audio.pcm import FloatArray
from antiphon.errors import ResumeError
from antiphon.protocol import resume
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.resume import resume_terms
from antiphon.serve.hosting.services import Services

MAX_UNACKNOWLEDGED: Final = 512
MAX_UNACKNOWLEDGED_BYTES: Final = 65_536
"""Messages of a call that are kept; one with more cannot be resumed, as with the engine's calls."""

MAX_SKIPPED_FRAMES: Final = 2250
"""Frames that a client may be ahead of what was heard: three minutes, more than a call waits for it."""


class LocalSequence:
    """The numbers of a call's messages, and those that its client may lack. ``seq`` is the next number."""

    def __init__(self) -> None:
        """Begin a call."""
        self.seq, self.kept = 0, b""
        self.is_whole = True  # none is lost that the client may lack
        self._sent: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """These bytes are the next numbered message."""
        self._sent.append((self.seq, data))
        self._bytes += len(data)
        self.seq += 1
        while len(self._sent) > MAX_UNACKNOWLEDGED or self._bytes > MAX_UNACKNOWLEDGED_BYTES:
            self._drop()
            self.is_whole = False

    def drop_until(self, seq: int) -> None:
        """The client has everything up to this number."""
        while self._sent and self._sent[0][0] <= seq:
            self._drop()

    def after(self, seq: int) -> list[bytes]:
        """The messages after this one."""
        return [data for number, data in self._sent if number > seq]

    def _drop(self) -> None:
        self._bytes -= len(self._sent.popleft()[1])


class Recent:
    """The last frames of sound of a call, as far as they are sent again, by their numbers."""

    def __init__(self, frame_ms: float) -> None:
        """Begin without any."""
        self._frames: deque[tuple[int, FloatArray]] = deque(maxlen=max(1, round(resume.REPLAY_MS / frame_ms)))

    def add(self, frame: int, pcm: FloatArray) -> None:
        """This frame is sent now."""
        self._frames.append((frame, pcm))

    def after(self, frame: int) -> tuple[int, list[tuple[int, FloatArray]]]:
        """How many frames are lost of a client that has all up to this one, and those it gets again."""
        again = [(number, pcm) for number, pcm in self._frames if number > frame]
        missed = again[0][0] - frame - 1 if again and frame >= 0 else 0
        return missed, again


def continued(samples: int, frame: int, frame_samples: int) -> tuple[int, int, int]:
    """How a call continues that has heard ``samples``, of a client that can send from ``frame`` on.

    Returns the samples that count as heard, how many of the next ones were heard already, and the frame that
    the client is to send next.
    """
    heard = samples // frame_samples
    if frame <= heard:
        return samples, samples % frame_samples, heard
    frame = min(frame, heard + MAX_SKIPPED_FRAMES)
    return frame * frame_samples, 0, frame


class LocalResume:
    """One call's way to another connection of the ``caller``."""

    def __init__(self, services: Services, caller: Caller) -> None:
        """Begin a call."""
        self.window_s = services.config.engine.resume_window_s
        self.sequence = LocalSequence()
        self._config, self._owner = services.config, caller.name
        self._token, self._former = resume.new_token(), b""
        self._change = asyncio.Event()

    def terms(self) -> dict[str, Any]:
        """How the client resumes the call."""
        return resume_terms(self._config, self._token)

    def has(self, token: bytes) -> bool:
        """Whether this is the call's token, or the one before, while the client may not have the new one."""
        return any(hmac.compare_digest(token, it) for it in (self._token, self._former) if it)

    def confirm(self, seq: int) -> None:
        """The client has the messages up to this one, and its token."""
        self.sequence.drop_until(seq)
        self._former = b""

    def claim(self, claim: resume.Claim, caller: Caller) -> None:
        """Another connection has the call from now on, with a new token.

        Raises:
            ResumeError: it cannot have it.
        """
        if caller.name != self._owner:
            raise ResumeError("unknown: this call was begun with another API key")
        if claim.seq >= self.sequence.seq:
            words = f"the client has message {claim.seq}, of {self.sequence.seq} that were sent"
            raise ResumeError(f"unknown: {words}")
        if not self.sequence.is_whole:
            raise ResumeError("unknown: the call said too much that was not acknowledged")
        self.sequence.drop_until(claim.seq)
        self._former, self._token = claim.token, resume.new_token()
        self._change.set()

    async def wait(self) -> None:
        """Wait until another connection has the call, or :meth:`leave`, for the window at most."""
        self._change.clear()
        try:
            async with asyncio.timeout(self.window_s):
                await self._change.wait()
        except TimeoutError:
            pass

    def leave(self) -> None:
        """The call ends: nothing is waited for any more."""
        self._change.set()


def local_resume(services: Services, caller: Caller) -> LocalResume | None:
    """A new call's way to another connection; None where there is none.

    With several front ends the next connection may reach another process, which does not have the call.
    """
    has_others = services.config.front_ends not in (0, 1)
    return (
        None if has_others or services.config.engine.resume_window_s <= 0 else LocalResume(services, caller)
    )

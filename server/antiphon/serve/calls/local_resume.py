"""Resumption of a call whose state is not in a row, such as the call of a voice agent, which is in its front
end's process.

The call waits with its rows, its participant and its dialect, until its client continues it on another
connection. A connection that reaches another front end is passed on to the call's front end
(:mod:`antiphon.serve.hosting.front_end_links`). The client's side is :mod:`antiphon.protocol.resume`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from typing import Any, Final

from antiphon.agent.values import ReplaySound
from antiphon.audio.pcm import FloatArray
from antiphon.errors import ResumeError
from antiphon.protocol import resume
from antiphon.serve.access.callers import Caller
from antiphon.serve.calls.resume import resume_terms
from antiphon.serve.hosting.services import Services

MAX_UNACKNOWLEDGED: Final = 512
MAX_UNACKNOWLEDGED_BYTES: Final = 65_536
"""Maximum bytes of kept messages of a call. A call with more cannot be resumed, like calls of the engine."""

MAX_GAPS: Final = 64
"""Number of recent gaps in sent frame numbers that are kept; a client lacks only frames after them."""

MAX_SKIPPED_FRAMES: Final = 2250
"""Maximum number of frames that a client may be ahead of the processed frames: three minutes, longer than a
call waits for it.
"""


class LocalSequence:
    """Numbers a call's messages, and keeps those that the client may lack. ``seq`` is the next number."""

    def __init__(self) -> None:
        """Begin a call."""
        self.seq, self.kept = 0, b""
        self.is_whole = True  # no message is lost that the client may lack
        self._sent: deque[tuple[int, bytes]] = deque()
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Number these bytes as the next message."""
        self._sent.append((self.seq, data))
        self._bytes += len(data)
        self.seq += 1
        while len(self._sent) > MAX_UNACKNOWLEDGED or self._bytes > MAX_UNACKNOWLEDGED_BYTES:
            self._drop()
            self.is_whole = False

    def drop_until(self, seq: int) -> None:
        """Drop messages up to this number, which the client has received."""
        while self._sent and self._sent[0][0] <= seq:
            self._drop()

    def after(self, seq: int) -> list[bytes]:
        """The messages after the one with the number ``seq``."""
        return [data for number, data in self._sent if number > seq]

    def _drop(self) -> None:
        self._bytes -= len(self._sent.popleft()[1])


class Recent:
    """The last frames of a call's sound by number, which can be sent again, and which of them belong to the
    call's last reply.
    """

    def __init__(self, frame_ms: float) -> None:
        """Begin without any."""
        self._frame_ms = frame_ms
        self._item, self._sound = "", list[tuple[int, int]]()  # the reply, begins and ends of its frames
        self._frames: deque[tuple[int, FloatArray]] = deque(maxlen=max(1, round(resume.REPLAY_MS / frame_ms)))
        self._gaps: deque[tuple[int, int]] = deque(maxlen=MAX_GAPS)  # numbers that no frame has
        self._next = 0

    def add(self, frame: int, pcm: FloatArray, item: str = "") -> None:
        """Add a frame that is being sent, of the reply ``item`` or of silence."""
        if frame > self._next:
            self._gaps.append((self._next, frame))
        self._next = frame + 1
        self._frames.append((frame, pcm))
        if item:
            if item != self._item:
                self._item, self._sound = item, []
            begin = self._sound.pop()[0] if self._sound and self._sound[-1][1] == frame else frame
            self._sound.append((begin, self._next))

    def clear(self) -> None:
        """Drop all frames, because the reply was cut."""
        self._frames.clear()

    def after(self, frame: int, following: int) -> tuple[int, int, list[tuple[int, FloatArray]]]:
        """The frames after ``frame`` that are sent to a client again; ``following`` is the next new frame.

        Returns the first frame sent, the number of frames lost to the client, and the frames.
        """
        again = [(number, pcm) for number, pcm in self._frames if number > frame]
        first = again[0][0] if again else following
        gaps = [*self._gaps, (self._next, max(self._next, following))]
        unsent = sum(max(0, min(end, first) - max(begin, frame + 1)) for begin, end in gaps)
        return first, max(0, first - frame - 1 - unsent) if frame >= 0 else 0, again

    def replayed_sound(self, frame: int, first: int) -> ReplaySound:
        """The part of the last reply that a client gets again from frame ``first`` on, and the part that the
        client never gets.

        ``frame`` is the last frame that the client has. If the client has none, the part that it never gets
        is unknown.
        """
        again_ms, lost_ms = self._sound_ms(first), self._sound_ms(frame + 1)
        seconds = (self._sound_ms(self._next) - again_ms) / 1000
        return ReplaySound(seconds, self._item, (lost_ms, again_ms) if frame >= 0 else (0, 0))

    def _sound_ms(self, frame: int) -> int:
        """Milliseconds of the last reply in the frames before this one."""
        frames = sum(max(0, min(end, frame) - begin) for begin, end in self._sound)
        return round(frames * self._frame_ms)


def continued(samples: int, frame: int, frame_samples: int) -> tuple[int, int, int]:
    """The positions at which a call continues that has processed ``samples``, if its client can send from
    ``frame`` on.

    Returns the number of samples that count as processed, the number of following samples that were already
    processed, and the next frame that the client must send.
    """
    heard = samples // frame_samples
    if frame <= heard:
        return samples, samples % frame_samples, heard
    frame = min(frame, heard + MAX_SKIPPED_FRAMES)
    return frame * frame_samples, 0, frame


class LocalResume:
    """The resumption of one call of the ``caller``."""

    def __init__(self, services: Services, caller: Caller) -> None:
        """Begin a call."""
        self.window_s = services.config.engine.resume_window_s
        self.sequence = LocalSequence()
        self._services, self._owner = services, caller.name
        self._key = self._former = b""  # of tokens only the stored form is kept
        self._change = asyncio.Event()
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Whether another connection may take the call: false at its end, and while the server drains."""
        is_draining = any(it.engine.health().draining for it in self._services.models)
        return not (self._is_over or is_draining)

    def terms(self) -> dict[str, Any]:
        """Return a new token and the limits for resuming the call."""
        token = resume.new_token()
        self._key = resume.token_key(token)
        terms, links = resume_terms(self._services.config, token), self._services.links
        return terms if links is None else terms | {"worker": links.place(terms.get("worker", ""))}

    def has(self, token: bytes) -> bool:
        """Whether this is the call's token, or its former token while the client may lack the new one."""
        key = resume.token_key(token)
        return any(hmac.compare_digest(key, it) for it in (self._key, self._former) if it)

    def confirm(self, seq: int) -> None:
        """Record that the client has received the messages up to this one, and therefore the new token."""
        self.sequence.drop_until(seq)
        self._former = b""

    def claim(self, claim: resume.Claim, caller: Caller) -> None:
        """Give the call to another connection; :meth:`terms` makes the call's next token.

        Raises:
            ResumeError: the call cannot be resumed.
        """
        if not self.is_open:
            raise ResumeError("draining: the server is shutting down")
        if caller.name != self._owner:
            raise ResumeError("unknown: this call was started with another API key")
        if claim.seq >= self.sequence.seq:
            words = f"the client has message {claim.seq}, of {self.sequence.seq} that were sent"
            raise ResumeError(f"unknown: {words}")
        if not self.sequence.is_whole:
            raise ResumeError("unknown: the call has too many unacknowledged messages")
        self.sequence.drop_until(claim.seq)
        self._former, self._key = resume.token_key(claim.token), b""
        self._change.set()

    async def wait(self) -> None:
        """Wait until another connection has the call, until :meth:`leave`, or until the window is over."""
        self._change.clear()
        try:
            async with asyncio.timeout(self.window_s):
                await self._change.wait()
        except TimeoutError:
            pass

    def leave(self) -> None:
        """End resumption: the call ends, or the server shuts down."""
        self._is_over = True
        self._change.set()


def local_resume(services: Services, caller: Caller) -> LocalResume | None:
    """The state with which a new call can be resumed; None if ``resume_window_s`` is 0."""
    return LocalResume(services, caller) if services.config.engine.resume_window_s > 0 else None

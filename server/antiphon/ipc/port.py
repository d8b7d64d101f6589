"""One model's engine and one of its sessions, as a front end sees them, in this process or in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from antiphon.backends.base import BackendInfo, FloatArray, TextEntry
from antiphon.errors import AntiphonError
from antiphon.ipc.values import FrameReply, Health, SessionState, SessionStats, TakenReplies
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

ModelFacts: TypeAlias = BackendInfo
"""What does not change while an engine runs: ``spec`` (with the model's name), ``kind``, ``slots``, ..."""

Notify: TypeAlias = Callable[[], None]


class CallSession(Protocol):
    """A caller's half of a session.

    Audio pushed before it is ACTIVE is ignored: frame 0 is the first one after. Text waits. What comes once
    it is finished or CLOSED is ignored. All times are CLOCK_MONOTONIC seconds.
    """

    @property
    def id(self) -> str:
        """The same in the log of every process."""
        ...

    @property
    def state(self) -> SessionState:
        """Where the session is in its life."""
        ...

    @property
    def error(self) -> AntiphonError | None:
        """Why a CLOSED session ended, None when its owner closed it."""
        ...

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters from the next frame on."""
        ...

    @property
    def position(self) -> int | None:
        """Place in the queue, 0 for the next to be admitted, None when not waiting."""
        ...

    @property
    def retry_after_s(self) -> int:
        """Seconds until a waiting session may expect its row."""
        ...

    @property
    def room_samples(self) -> int:
        """Samples :meth:`push` takes now without dropping or refusing any."""
        ...

    @property
    def room_entries(self) -> int:
        """Words :meth:`push_text` takes now."""
        ...

    @property
    def queue_frames(self) -> int:
        """Whole frames (tts: words) waiting for the model."""
        ...

    @property
    def reply_frames(self) -> int:
        """Replies waiting to be taken."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing the engine was given waits or is being answered, and every reply was taken."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the input was finished (or ``max_steps`` reached), answered, and every reply taken."""
        ...

    def push(self, pcm: FloatArray, received_s: float) -> None:
        """Add audio, float32 ``[N]`` at the model's rate; a live pipeline drops its oldest for it."""
        ...

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words to be spoken; one that ``is_last`` finishes the session."""
        ...

    def prime(self, prompt: Prompt) -> None:
        """Let the row read this prompt before anything else."""
        ...

    def finish(self) -> None:
        """No more input comes: a tail of audio is padded to a whole frame, replies to it still come."""
        ...

    def listen_aside(self, frames: int, now_s: float) -> None:
        """Hear so many frames of silence once all audio is answered, on a copy of the row's state."""
        ...

    def take(self) -> list[FrameReply]:
        """All replies that wait, oldest first, for who need not know of a gap before them."""
        ...

    def take_with_gap(self) -> TakenReplies:
        """All replies that wait, and the gap before them if older ones were dropped since last taken."""
        ...

    def flush(self) -> int:
        """Throw away input that waits and replies not taken; returns the first frame that may still come."""
        ...

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other sampling parameters from the next frame on."""
        ...

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float = 0.0) -> None:
        """A reply was handed to the socket, after so much waiting for a peer that does not read."""
        ...

    def close(self, error: AntiphonError | None = None) -> None:
        """End the session and free its row; whatever waits or is still being computed is thrown away."""
        ...

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        ...


class EnginePort(Protocol):
    """One model's engine, as a front end sees it."""

    @property
    def info(self) -> ModelFacts:
        """The model, its backend, device, rows, and whether it takes prompts."""
        ...

    async def submit(
        self,
        parameters: SamplingParameters,
        *,
        wait_s: float,
        notify: Notify,
        prompt: Prompt | None = None,
    ) -> CallSession:
        """A new session, ACTIVE, or QUEUED for at most ``wait_s`` seconds; with a prompt first PRIMING.

        ``notify`` is called on the thread of the event loop that submits, whenever the session has changed:
        replies, state, position, error, room. Several changes may be one call.

        Raises:
            ServerFullError: no row is free, or deadlines are being missed, and the session cannot wait.
            DrainingError: the server is leaving.
            SessionFailedError: the device, or the engine's process, is lost.
            UnsupportedError: a prompt for a backend that takes none.
        """
        ...

    async def check_room(self, wait_s: float) -> None:
        """Whether :meth:`submit` would take a caller now, who waits so long; raises as it would."""
        ...

    def health(self) -> Health:
        """How the engine is, as far as this process knows; it never blocks."""
        ...

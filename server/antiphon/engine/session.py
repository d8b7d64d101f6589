"""One caller: where it is in its life, whose row it is, and the lock around its frames.

A session is touched from two sides: the socket's tasks push, take and close; admission gives it a row. One
lock per session guards that, for microseconds at a time. What the engine thread does with frames goes through
the arrays of :mod:`antiphon.engine.rows` and takes no lock of a session's. Locks are taken in one order:
admission's, a session's, the engine's wake-up. The caller's ``notify`` is never called under any of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.backends.base import FloatArray, RowSnapshot, TextEntry
from antiphon.engine.aside import Aside
from antiphon.engine.channel import Channel
from antiphon.engine.config import EngineConfig
from antiphon.engine.inbox import TextInbox
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.engine.row_state import SavedState
from antiphon.engine.rows import Rows
from antiphon.engine.wake import Wake
from antiphon.errors import AntiphonError, SessionError, SessionFailedError
from antiphon.ipc.policy import POLICIES
from antiphon.ipc.values import FrameReply, SessionState, SessionStats, TakenReplies
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec


class Host(Protocol):
    """What a session asks of the engine; never called under the session's lock."""

    def leave(self, session: Session) -> None:
        """The session has closed."""
        ...

    def position(self, session: Session) -> int | None:
        """How many callers wait before this one, None when it does not wait."""
        ...

    def retry_after_s(self, session: Session) -> int:
        """Seconds until this waiting caller may expect a row."""
        ...


class Session:
    """A caller's end of the engine; every public method may be called from any thread.

    Audio pushed before it is ACTIVE is ignored: nobody listens yet, and frame 0 is the first one after.
    Text waits. Whatever comes once it is finished or CLOSED is ignored. ``error`` says why a CLOSED
    session ended, None when its owner closed it.
    """

    def __init__(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        spec: ModelSpec,
        config: EngineConfig,
        metrics: EngineMetrics,
        pressure: LatePressure,
        rows: Rows,
        wake: Wake,
        host: Host,
        notify: Callable[[], None] | None,
        prompt: Prompt | SavedState | None = None,
    ) -> None:
        """Start QUEUED; ``host``, ``rows``, ``wake``, ``metrics`` and ``pressure`` are the engine's own.

        With ``notify`` None the session is not told of its replies: whoever owns it takes them anyway.
        """
        self.id = session_id
        self.state = SessionState.QUEUED
        self.error: AntiphonError | None = None
        self._frames = Channel(spec, config, rows, metrics, pressure)
        self._rows = rows
        self._wake = wake
        self._host = host
        self._notify = notify
        self._parameters = parameters
        self._has_new_parameters = True
        self._prompt = prompt
        self._is_live = POLICIES[spec.kind].is_live
        self._lock = threading.Lock()

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters from the next frame on."""
        return self._parameters

    @property
    def position(self) -> int | None:
        """Place in the queue, 0 for the next to be admitted, None when not waiting."""
        return self._host.position(self)

    @property
    def retry_after_s(self) -> int:
        """Seconds until a waiting session may expect its row, estimated from how long sessions lasted."""
        return self._host.retry_after_s(self)

    @property
    def room_samples(self) -> int:
        """Samples :meth:`push` takes now without dropping or refusing any.

        Callers whose pipeline never drops (stt) read their socket only while this is above 0 and push at
        most so many; live ones (codec, duplex) need not ask.
        """
        with self._lock:
            return self._frames.room_samples if self.state is SessionState.ACTIVE else 0

    @property
    def room_entries(self) -> int:
        """Words :meth:`push_text` takes now."""
        with self._lock:
            return 0 if self.state is SessionState.CLOSED else self._frames.room_entries

    @property
    def queue_frames(self) -> int:
        """Whole frames (tts: words) waiting for the model."""
        return self._frames.waiting

    @property
    def reply_frames(self) -> int:
        """Replies waiting to be taken."""
        return self._frames.replies

    @property
    def is_idle(self) -> bool:
        """Whether nothing the engine was given waits or is being answered, and every reply was taken."""
        with self._lock:
            return self._frames.is_idle

    @property
    def is_done(self) -> bool:
        """Whether the input was finished (or ``max_steps`` reached), answered, and every reply taken."""
        with self._lock:
            return self._frames.is_done

    def push(self, pcm: FloatArray, received_s: float) -> None:
        """Add audio, float32 ``[N]`` at the model's rate, received at ``received_s`` (the engine's clock).

        A live pipeline drops its oldest whole frames for it, at the next tick at the latest.

        Raises:
            UnsupportedError: this pipeline takes text.
            SessionError: more than ``room_samples`` where nothing may be dropped.
        """
        self._frames.must_take_audio()
        with self._lock:
            if self.state is not SessionState.ACTIVE or self._frames.is_finished:
                return
            is_ready = self._frames.push(pcm, received_s)
        if is_ready:
            self._wake.nudge()

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words to be spoken, received at ``received_s`` (the engine's clock).

        A word that ``is_last`` finishes the session, as :meth:`finish` does.

        Raises:
            UnsupportedError: this pipeline takes audio.
            SessionError: more than ``room_entries``.
        """
        self._frames.must_take_text()
        with self._lock:
            if self.state is SessionState.CLOSED or self._frames.is_finished:
                return
            self._frames.push_text(entries, received_s)
        self._wake.nudge()

    def prime(self, prompt: Prompt) -> None:
        """Let the row read this prompt before anything else, instead of the one given before, if any.

        Raises:
            SessionError: something was pushed already.
        """
        with self._lock:
            if self.state is SessionState.CLOSED:
                return
            if self._frames.is_begun:
                raise SessionError("a prompt came after what is to be answered; it comes first")
            self._prompt = prompt
            if self.state is SessionState.ACTIVE:
                self.state = SessionState.PRIMING
                self._frames.prime(is_primed=False)
                self._frames.ask_for_care()
        self._wake.nudge()

    def finish(self) -> None:
        """No more input comes: a tail of audio is padded to a whole frame, replies to it still come."""
        with self._lock:
            if self.state is SessionState.CLOSED or self._frames.is_finished:
                return
            self._frames.finish()
            is_done = self._frames.is_done
        self._wake.nudge()
        if is_done:
            self.tell()

    def listen_aside(self, frames: int, now_s: float) -> None:
        """Hear so many frames of silence once all audio is answered, on a copy of the row's state.

        Their replies are marked ``is_aside``. What is pushed later is heard as if there had been none of it:
        replies to silence that were not taken by then never come. Where no copy can be had (``aside_rows`` of
        them are kept for others), the silence stays.

        Raises:
            UnsupportedError: the pipeline is live, or takes text.
        """
        with self._lock:
            if self.state is not SessionState.ACTIVE or self._frames.is_finished:
                return
            self._frames.listen_aside(frames, now_s)
        self._wake.nudge()

    def take(self) -> list[FrameReply]:
        """All replies that wait, oldest first, for who need not know of a gap before them."""
        return self.take_with_gap().replies

    def take_with_gap(self) -> TakenReplies:
        """All replies that wait, and the gap before them if older ones were dropped since last taken."""
        with self._lock:
            taken = self._frames.take()
        if taken.replies and not self._is_live:
            self._wake.nudge()  # there is room for replies now
        return taken

    def flush(self) -> int:
        """Throw away input that waits and replies not taken; returns the first frame that may still come."""
        with self._lock:
            first_kept = self._frames.flush()
        self._wake.nudge()
        return first_kept

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other sampling parameters from the next frame on."""
        with self._lock:
            self._parameters = parameters
            self._has_new_parameters = True
            self._frames.limit(parameters.max_steps)
            self._frames.ask_for_care()

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float = 0.0) -> None:
        """Record that a reply was handed to the socket at ``sent_s`` (the engine's clock).

        ``peer_wait_s`` of its time went into waiting for a peer that does not read: that makes a frame
        late, but is not held against the server when it decides whether to admit more callers.
        """
        with self._lock:
            self._frames.sent(reply, sent_s, peer_wait_s)

    def close(self, error: AntiphonError | None = None) -> None:
        """End the session and free its row; whatever waits or is still being computed is thrown away."""
        with self._lock:
            if self.state is SessionState.CLOSED:
                return
            self.error = error
            self.state = SessionState.CLOSED
            self._frames.end()
        self._host.leave(self)
        self.tell()

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        with self._lock:
            return self._frames.stats()

    # What follows is for the engine alone.

    @property
    def is_notified(self) -> bool:
        """Whether the owner is to be called after a tick."""
        return self._notify is not None

    @property
    def lease(self) -> int | None:
        """The session's lease of a row, None while it has none."""
        return self._frames.lease

    @property
    def aside(self) -> Aside:
        """Where the session stands with silence heard aside."""
        return self._frames.aside

    @property
    def kept(self) -> RowSnapshot | None:
        """The row's state without the silence it has heard aside, while there is any."""
        return self._frames.aside.kept

    @property
    def text(self) -> TextInbox:
        """The words that wait to be spoken."""
        return self._frames.text

    def tell(self) -> None:
        """Call ``notify``."""
        if self._notify is None:
            return
        try:
            self._notify()
        except Exception as error:  # the caller's code: what breaks in it ends its session, not the engine
            Log(__name__).error("notify failed", session=self.id, exc_info=error)
            self.close(SessionFailedError(f"the session's owner could not be told of a change: {error!r}"))

    def activate(self) -> bool:
        """Own a row; false when the session has closed meanwhile. Called under admission's lock."""
        with self._lock:
            if self.state is not SessionState.QUEUED:
                return False
            lease = self._rows.leases.take(self)
            if lease is None:
                return False
            is_primed = self._prompt is None
            self.state = SessionState.ACTIVE if is_primed else SessionState.PRIMING
            self._frames.open(lease, self._parameters.max_steps, is_primed=is_primed)
            self._frames.ask_for_care()
        self._wake.nudge()  # text may have come while it waited
        return True

    def new_parameters(self) -> SamplingParameters | None:
        """The parameters the row lacks, once; None while it has them."""
        with self._lock:
            parameters = self._parameters if self._has_new_parameters else None
            self._has_new_parameters = False
            return parameters

    def begin_priming(self) -> tuple[int, Prompt | SavedState, SamplingParameters | None] | None:
        """The lease, what its row is to read, and its parameters if it lacks them; None once it closed."""
        with self._lock:
            lease = self._frames.lease
            if lease is None or self._prompt is None:
                return None
            parameters = self._parameters if self._has_new_parameters else None
            self._has_new_parameters = False
            return lease, self._prompt, parameters

    @property
    def is_priming(self) -> bool:
        """Whether the row still reads a prompt."""
        return self.state is SessionState.PRIMING

    def freeze(self) -> None:
        """Take no step until :meth:`thaw`; what comes meanwhile waits, up to the bounds of the queues."""
        with self._lock:
            self._frames.freeze(is_frozen=True)

    def thaw(self) -> None:
        """Go on."""
        with self._lock:
            self._frames.freeze(is_frozen=False)
        self._wake.nudge()

    def end_priming(self, lease: int, prompt: Prompt | SavedState) -> bool:
        """The prompt is read: frame 0 is what is pushed from now on. Nothing happens to a closed session.

        Returns whether there is another to be read: the owner has changed its mind meanwhile.
        """
        with self._lock:
            if self._frames.lease != lease:
                return False
            if self._prompt is not prompt:
                return True
            self._prompt = None
            self.state = SessionState.ACTIVE
            self._frames.prime(is_primed=True)  # text may have come while it was read
        self.tell()
        return False

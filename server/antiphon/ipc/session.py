"""The caller's half of a session: what it pushes, takes and asks for, on its arrays and by messages.

A session belongs to the thread of its client (:mod:`antiphon.ipc.engine_client`), an event loop's, which also
hands it the engine's messages. It takes no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.backends.base import FloatArray, TextEntry
from antiphon.errors import AntiphonError, SessionError, SessionFailedError
from antiphon.ipc import messages
from antiphon.ipc.client_context import ClientContext
from antiphon.ipc.session_buffers import SessionBuffers
from antiphon.ipc.values import FrameReply, Note, Resumption, SessionState, SessionStats, TakenReplies
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class SessionLink:
    """What the sessions of one engine ask of their client.

    ``send`` a message; ``nudge`` the engine thread: there is a whole frame, or room for replies; the session
    has ``changed``, so its owner is to be notified soon; it has ``closed``.
    """

    send: Callable[[messages.CallRequest], None]
    nudge: Callable[[], None]
    changed: Callable[[Session], None]
    closed: Callable[[Session], None]


class Session:
    """A caller's end of the engine.

    Audio pushed before it is ACTIVE is ignored: no row reads it yet, and frame 0 is the first one after.
    Text waits. What comes once it is finished or CLOSED is ignored. ``error`` says why a CLOSED session
    ended, None when its owner closed it. All times are seconds of the engine's clock.
    """

    def __init__(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        side: ClientContext,
        link: SessionLink,
        notify: Callable[[], None] | None,
        is_primed: bool = True,
    ) -> None:
        """Start QUEUED, with a prompt to be read first where it is not ``is_primed``.

        With ``notify`` None no call announces a change: the session's owner looks itself.
        """
        self.id = session_id
        self.state = SessionState.QUEUED
        self.error: AntiphonError | None = None
        self.position: int | None = None
        self.retry_after_s = 1
        self.resumption: Resumption | None = None
        self.is_moving = False  # the owner is to detach, since another worker gets the call
        self._link, self._notify = link, notify
        self._frames = SessionBuffers(session_id, side, link.send)
        self._watcher: Callable[[FrameReply], None] | None = None
        self._parameters = parameters
        self._prompts, self._is_primed = 0, is_primed
        self._is_live = side.spec.kind.is_live

    @property
    def lease(self) -> int | None:
        """The session's lease, None while it has none."""
        return self._frames.lease

    @property
    def parameters(self) -> SamplingParameters:
        """The sampling parameters from the next frame on."""
        return self._parameters

    @property
    def room_samples(self) -> int:
        """Samples :meth:`push` takes now without dropping or refusing any.

        Callers whose pipeline never drops (stt) read their socket only while this is above 0 and push at
        most so many; live ones (codec, duplex) need not ask.
        """
        return self._frames.room_samples if self.state is SessionState.ACTIVE else 0

    @property
    def room_entries(self) -> int:
        """Words :meth:`push_text` takes now."""
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
        return self._frames.is_idle

    @property
    def is_done(self) -> bool:
        """Whether the input was finished (or ``max_steps`` reached), answered, and every reply taken."""
        return self._frames.is_done

    def push(self, pcm: FloatArray, received_s: float) -> None:
        """Add audio, float32 ``[N]`` at the model's rate, received at ``received_s`` (the engine's clock).

        A live pipeline drops its oldest whole frames for it, at the next tick at the latest.

        Raises:
            UnsupportedError: this pipeline takes text.
            SessionError: more than ``room_samples`` where nothing may be dropped.
        """
        self._frames.must_take(audio=True)
        if self.state is not SessionState.ACTIVE or self._frames.is_finished:
            return
        is_ready = self._frames.push(pcm, received_s)
        if is_ready:
            self._link.nudge()

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words to be spoken, received at ``received_s`` (the engine's clock).

        A word that ``is_last`` finishes the session, as :meth:`finish` does.

        Raises:
            UnsupportedError: this pipeline takes audio.
            SessionError: more than ``room_entries``.
        """
        self._frames.must_take(audio=False)
        if self.state is SessionState.CLOSED or self._frames.is_finished:
            return
        self._frames.push_text(entries, received_s)
        self._link.nudge()

    def prime(self, prompt: Prompt) -> None:
        """Let the row read this prompt before anything else, instead of the one given before, if any.

        Raises:
            SessionError: something was pushed already, or no open file is left to pass it on.
        """
        if self.state is SessionState.CLOSED:
            return
        if self._frames.is_begun:
            raise SessionError("a prompt came after the first input; it must precede all input")
        self._link.send(messages.Prime(self.id, self._prompts + 1, prompt))
        self._prompts, self._is_primed = self._prompts + 1, False
        if self.state is SessionState.ACTIVE:
            self.state = SessionState.PRIMING

    def finish(self) -> None:
        """No more input comes: a tail of audio is padded to a whole frame, replies to it still come."""
        if self.state is SessionState.CLOSED or self._frames.is_finished:
            return
        self._frames.finish()
        is_done = self._frames.is_done
        self._link.nudge()
        if is_done:
            self._link.changed(self)

    def hear_padding(self, frames: int, now_s: float) -> None:
        """Hear so many frames of silence once all audio is answered, on a copy of the row's state.

        Their replies are marked ``is_padding``. What is pushed later is heard as if there had been none of
        it: replies to silence that were not taken by then never come. Where no copy can be had
        (``padding_rows`` of them are kept for others), the silence stays.

        Raises:
            UnsupportedError: the pipeline is live, or takes text.
        """
        if self.state is not SessionState.ACTIVE or self._frames.is_finished:
            return
        self._frames.hear_padding(frames, now_s)
        self._link.nudge()

    def take(self) -> list[FrameReply]:
        """All replies that wait, oldest first, for who need not know of a gap before them."""
        return self.take_with_gap().replies

    def take_with_gap(self) -> TakenReplies:
        """All replies that wait, and the gap before them if older ones were dropped since last taken."""
        taken = self._frames.take()
        if taken.replies and not self._is_live:
            self._link.nudge()  # there is room for replies now
        return taken

    def flush(self) -> int:
        """Throw away input that waits and replies not taken; returns the first frame that may still come."""
        first_kept = self._frames.flush()
        self._link.nudge()
        return first_kept

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other sampling parameters from the next frame on."""
        self._parameters = parameters
        self._frames.change_parameters(parameters)

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float = 0.0) -> None:
        """Record that a reply was handed to the socket at ``sent_s`` (the engine's clock).

        ``peer_wait_s`` of its time went into waiting for a peer that does not read: that makes a frame
        late, but is not held against the server when it decides whether to admit more callers.
        """
        self._frames.sent(reply, sent_s, peer_wait_s)
        if self._watcher is not None:
            self._watcher(reply)

    def watch(self, watcher: Callable[[FrameReply], None]) -> None:
        """Let ``watcher`` see every reply from now on, once it was handed to the socket."""
        self._watcher = watcher

    def arm(self, key: bytes, owner: str) -> None:
        """Let another connection resume the call that shows what hashes to ``key``, with this API key."""
        self._link.send(messages.Arm(self.id, key, owner))

    def note(self, notes: tuple[Note, ...], told_frame: int) -> None:
        """Numbered messages are about to be sent, and the text of replies to frames below ``told_frame``."""
        self._link.send(messages.Noted(self.id, notes, told_frame))

    def acknowledge(self, seq: int) -> None:
        """The client has got numbered messages up to this one."""
        self._link.send(messages.Acknowledge(self.id, seq))

    def detach(self) -> None:
        """The connection is gone: the row waits. Nothing may be pushed or taken any more.

        The session ends with ReplacedError when the call is resumed, with ResumeError when it is too late.
        """
        self._link.send(messages.Detach(self.id))

    @property
    def next_frame(self) -> int:
        """The number of the first input frame that has not come."""
        return self._frames.next_frame

    def skip_to(self, frame: int) -> None:
        """Input frames before this one never come, and count as dropped."""
        self._frames.skip_to(frame)

    def close(self, error: AntiphonError | None = None) -> None:
        """End the session and free its row; whatever waits or is still being computed is thrown away."""
        if self.state is SessionState.CLOSED:
            return
        self.error = error
        self.state, self.position = SessionState.CLOSED, None
        self._link.closed(self)
        self._frames.end()
        self._link.send(messages.Close(self.id))
        self._link.changed(self)

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        return self._frames.stats()

    # From its client.

    def handle(self, notice: messages.CallNotice) -> None:
        """Take a message of the engine."""
        match notice:
            case messages.Admitted(_, lease):
                self.position = None
                if self.state is SessionState.QUEUED:
                    self.state = SessionState.ACTIVE if self._is_primed else SessionState.PRIMING
                    self._frames.open(lease)
            case messages.Queued(_, position, retry_after_s):
                if self.state is SessionState.QUEUED:
                    self.position, self.retry_after_s = position, retry_after_s
            case messages.Primed(_, number):
                if self.state is SessionState.PRIMING and number == self._prompts:
                    self._is_primed, self.state = True, SessionState.ACTIVE
            case messages.Resumed(_, resumption):
                self.resumption, self._parameters = resumption, resumption.parameters
            case messages.Moving():
                self.is_moving = True
            case messages.Ended(_, error):
                self.close(error)
                return
        self._link.changed(self)

    def notify(self) -> None:
        """Call the owner's ``notify``; one that raises ends the session."""
        if self._notify is None:
            return
        try:
            self._notify()
        except Exception as error:  # the caller's code: what breaks in it ends its session, not the others
            Log(__name__).error("notify failed", session=self.id, exc_info=error)
            self._notify = None  # the end is one more change
            self.close(SessionFailedError(f"notifying the session's owner of a change failed: {error!r}"))

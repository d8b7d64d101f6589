"""The client side of one session of the engine: audio and replies in shared arrays, text and requests as
messages.

A session belongs to the thread of its client's event loop (:mod:`antiphon.ipc.engine_client`), which also
passes it the engine's messages. It uses no locks. Audio needs a lease, which the session gets together with
its row; text may be sent earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from antiphon.backends.base import FloatArray, TextEntry
from antiphon.errors import AntiphonError, SessionError, SessionFailedError, UnsupportedError
from antiphon.ipc import messages
from antiphon.ipc.client_context import ClientContext, SendStats, read_stats
from antiphon.ipc.rings import InputWriter, RingReplies, as_replies
from antiphon.ipc.values import FrameReply, Note, Resumption, SessionState, SessionStats, TakenReplies
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class SessionLink:
    """Callbacks of the sessions of one engine.

    ``send`` sends a message; ``nudge`` wakes the engine thread after a whole frame, or when replies have
    room; ``changed`` schedules a notification of the session's owner; ``closed`` reports the end.
    """

    send: Callable[[messages.CallRequest], None]
    nudge: Callable[[], None]
    changed: Callable[[Session], None]
    closed: Callable[[Session], None]


class Session:
    """The client side of one call of an engine.

    Audio pushed before the session is ACTIVE is ignored, because no row reads it; frame 0 is the first frame
    afterwards. Text pushed earlier waits. Input after :meth:`finish`, or after the session is CLOSED, is
    ignored. ``error`` is the reason why a CLOSED session ended, None if its owner closed it. ``lease`` is
    None while the session has no lease. The ``parameters`` apply from the next frame on. All times are
    seconds of the engine's clock.
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
        """Start QUEUED; unless ``is_primed``, a prompt is read first.

        If ``notify`` is None, changes are not announced, and the session's owner polls.
        """
        self.id = session_id
        self.state = SessionState.QUEUED
        self.error: AntiphonError | None = None
        self.position: int | None = None
        self.retry_after_s = 1
        self.resumption: Resumption | None = None
        self.is_moving = False  # its owner must detach, since another worker takes the call
        self.lease: int | None = None
        self.parameters = parameters
        self._link, self._notify, self._side = link, notify, side
        self._watcher: Callable[[FrameReply], None] | None = None
        self._prompts, self._is_primed = 0, is_primed
        self._is_restarting = False
        self._kind = side.spec.kind
        self._takes_audio, self._is_live = self._kind.takes_audio, self._kind.is_live
        self._caller, self._engine = side.arena.caller, side.arena.engine
        self._inputs, self._outputs = side.inputs, side.outputs
        self._writer: InputWriter | None = None
        self._first_kept = 0  # replies to earlier frames were flushed
        self._has_gap = False  # replies were given up since the last read
        self._is_finished = False
        self._run = self._padding = self._padding_void = 0  # interruptions, silent frames
        self._parameters = 0  # changes
        self._words = self._words_void = 0  # words sent, and words flushed
        self._final: SessionStats | None = None
        self._sends = SendStats(side.spec, side.deliveries, is_live=self._is_live)

    # Waiting input and replies.

    @property
    def room_samples(self) -> int:
        """Number of samples that :meth:`push` can take now without dropping or refusing any.

        Callers of a pipeline that never drops (stt) read their socket only while this is above 0, and push at
        most this number; live pipelines (codec, duplex) need no check.
        """
        if self.state is not SessionState.ACTIVE or self._writer is None:
            return 0
        return self._writer.free_samples

    @property
    def room_entries(self) -> int:
        """Number of words that :meth:`push_text` accepts now."""
        if self.state is SessionState.CLOSED or self._takes_audio or self._is_restarting:
            return 0
        return max(0, self._side.text_entries - self.queue_frames)

    @property
    def queue_frames(self) -> int:
        """Number of whole frames (tts: words) that wait for the model."""
        if not self._takes_audio:
            taken = 0 if self.lease is None else int(self._engine.words_taken[self.lease])
            return self._words - max(taken, self._words_void)
        return 0 if self._writer is None else min(self._writer.waiting, self._inputs.bound)

    @property
    def reply_frames(self) -> int:
        """Number of replies that wait for :meth:`take`."""
        return 0 if self.lease is None else max(0, int(self._outputs.waiting(self.lease)))

    @property
    def next_frame(self) -> int:
        """The number of the first input frame that has not arrived."""
        return 0 if self._writer is None else self._writer.frames

    @property
    def is_idle(self) -> bool:
        """Whether all input is answered and every reply taken.

        A frame may be unfinished.
        """
        return self._side.consistently(self._is_at_rest)

    def _is_at_rest(self) -> bool:
        # In this order: a frame is marked as in progress before it stops waiting, and its reply waits before
        # that mark is cleared.
        if self._has_input:
            return False
        if self.lease is None:
            return self._padding <= self._padding_void
        is_hearing_padding = self._padding > max(
            int(self._engine.padding_done[self.lease]), self._padding_void
        )
        return not (is_hearing_padding or self._engine.in_tick[self.lease] or self.reply_frames)

    @property
    def is_done(self) -> bool:
        """Whether the input has ended (or ``max_steps`` is reached) and is answered, and all replies are
        taken.
        """
        if self.lease is None:
            return self._is_finished and self._takes_audio
        is_spent = self._is_finished and not self._has_input
        if not self._takes_audio:
            is_spent = self._is_finished and bool(self._engine.has_spoken_all[self.lease])
        if not (is_spent or self._engine.is_over[self.lease]):
            return False
        return not (self._engine.in_tick[self.lease] or self.reply_frames)

    @property
    def _has_input(self) -> bool:
        if self._takes_audio or self.lease is None:
            return self.queue_frames > 0
        is_speaking = bool(self._engine.is_speaking[self.lease])
        return not self._engine.has_spoken_all[self.lease] and (self.queue_frames > 0 or is_speaking)

    @property
    def _takes_no_more(self) -> bool:
        """Whether the input has ended: by its owner, by its last word, or by the limit on steps."""
        return self._is_finished or (self.lease is not None and bool(self._engine.is_over[self.lease]))

    # Input.

    def push(self, pcm: FloatArray, received_s: float) -> None:
        """Add audio, float32 ``[N]`` at the model's rate, received at ``received_s`` (the engine's clock).

        A full live pipeline drops its oldest whole frames, at the next tick at the latest. Until then up to
        twice the bound may wait, and further frames are refused.

        Raises:
            UnsupportedError: this pipeline takes text.
            SessionError: more than ``room_samples`` for a pipeline that drops nothing.
        """
        self._must_take(audio=True)
        writer = self._writer
        if self.state is not SessionState.ACTIVE or self._takes_no_more or writer is None:
            return
        if not self._is_live and pcm.size > writer.free_samples:
            raise SessionError(
                f"{pcm.size} samples were pushed where {writer.free_samples} fit; "
                "read room_samples first, nothing is dropped here"
            )
        self._interrupt()
        writer.write(pcm, received_s)
        if writer.waiting > 0:
            self._link.nudge()

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words to be synthesised, received at ``received_s`` (the engine's clock).

        A word that ``is_last`` finishes the session, as :meth:`finish` does.

        Raises:
            UnsupportedError: this pipeline takes audio.
            SessionError: more than ``room_entries``.
        """
        self._must_take(audio=False)
        if self.state is SessionState.CLOSED or self._takes_no_more:
            return
        if len(entries) > self.room_entries:
            raise SessionError(
                f"{len(entries)} words were pushed where {self.room_entries} of "
                f"{self._side.text_entries} fit; "
                "read room_entries first, nothing is dropped here"
            )
        self._words += len(entries)
        self._is_finished |= any(entry.is_last for entry in entries)
        self._link.send(messages.PushText(self.id, tuple(entries), received_s))
        self._link.nudge()

    def _must_take(self, *, audio: bool) -> None:
        if audio != self._takes_audio:
            taken = "audio, not text" if self._takes_audio else "text, not audio"
            raise UnsupportedError(f"a {self._kind} session takes {taken}")

    def prime(self, prompt: Prompt) -> None:
        """Read this prompt before any other input, in place of the previous prompt, if any.

        Raises:
            SessionError: other input was already pushed, or no file descriptor is free for the prompt.
        """
        if self.state is SessionState.CLOSED:
            return
        has_taken = self.lease is not None and bool(self._engine.taken[self.lease])
        if has_taken or self.queue_frames or self._takes_no_more:
            raise SessionError("a prompt arrived after the first input; it must precede all input")
        self._link.send(messages.Prime(self.id, self._prompts + 1, prompt))
        self._prompts, self._is_primed = self._prompts + 1, False
        if self.state is SessionState.ACTIVE:
            self.state = SessionState.PRIMING

    def restart(self, prompt: Prompt | None) -> None:
        """Discard all text, including words being synthesised, and restart the row with this voice.

        New words can be pushed once the row has restarted; earlier words get no more replies.

        Raises:
            UnsupportedError: this pipeline takes audio.
        """
        self._must_take(audio=False)
        if self.state in (SessionState.CLOSED, SessionState.QUEUED):
            return
        self._words_void, self._is_finished = self._words, False
        self._discard_replies()
        self._prompts, self._is_primed, self._is_restarting = self._prompts + 1, False, True
        self.state = SessionState.PRIMING
        self._link.send(messages.Restart(self.id, self._prompts, prompt))

    def finish(self) -> None:
        """End the input. An unfinished frame of audio is padded to a whole frame; replies to the input still
        arrive.
        """
        if self.state is SessionState.CLOSED or self._takes_no_more:
            return
        self._interrupt()
        self._is_finished = True
        if not self._takes_audio:
            self._words += 1  # the end
            self._link.send(messages.EndText(self.id))
        elif self._writer is not None:
            self._writer.finish()
        is_done = self.is_done
        self._link.nudge()
        if is_done:
            self._link.changed(self)

    def feed_padding(self, frames: int, now_s: float) -> None:
        """Process ``frames`` frames of silence on a copy of the row's state, after all audio is answered.

        Their replies are marked ``is_padding``. Later input is processed as if there had been no silence;
        remaining replies to the silence are discarded. If all ``padding_rows`` are in use, no copy is made
        and the silence remains in the state.

        Raises:
            UnsupportedError: the pipeline is live, or takes text.
        """
        if self.state is not SessionState.ACTIVE or self._takes_no_more:
            return
        if not self._takes_audio or self._is_live:
            raise UnsupportedError(f"a {self._kind} session takes no flush padding")
        if self._writer is None or self.lease is None:
            return
        if self._engine.taken[self.lease] or self._writer.waiting:  # else no text is outstanding
            self._padding += frames
            tail, run = self._writer.unfinished, self._run
            self._link.send(messages.FeedPadding(self.id, run, self._padding, frames, tail, now_s))
        self._link.nudge()

    def _interrupt(self) -> None:
        """Undo flush padding: pending silence is cancelled, processed silence is undone."""
        if self._padding > self._padding_void and self.lease is not None:
            self._padding_void = self._padding
            self._run += 1
            self._caller.padding_run[self.lease] = self._run

    def skip_to(self, frame: int) -> None:
        """Skip the input frames before this one; they count as dropped."""
        if self._writer is not None:
            self._writer.skip_to(frame)

    def set_parameters(self, parameters: SamplingParameters) -> None:
        """Use other sampling parameters from the next frame on; the frame waits until the engine has them."""
        self.parameters = parameters
        self._parameters += 1
        self._link.send(messages.SetParameters(self.id, self._parameters, parameters))
        if self.lease is not None:
            self._caller.parameters[self.lease] = self._parameters

    # Replies.

    def take(self) -> list[FrameReply]:
        """All replies that wait, oldest first, for callers that ignore gaps."""
        return self.take_with_gap().replies

    def take_with_gap(self) -> TakenReplies:
        """All waiting replies, and the gap before them if older replies were dropped since the last call."""
        has_news = self.lease is not None and self._outputs.has_news(self.lease)
        if self.lease is None or not has_news or self._is_restarting:
            return TakenReplies([], None)
        found, given_up = self._outputs.take(self.lease)
        self._sends.dropped_out += given_up
        self._has_gap |= given_up > 0
        replies = as_replies(self._wanted(found))
        interrupted_at = replies[0].frame if self._has_gap and replies else None
        self._has_gap &= not replies
        given = sum(not reply.is_padding for reply in replies)
        self._sends.out += given
        self._caller.given[self.lease] += given
        if replies and not self._is_live:
            self._link.nudge()  # there is room for replies now
        return TakenReplies(replies, interrupted_at)

    def _wanted(self, found: RingReplies) -> RingReplies:
        """Exclude replies that the engine published while this side flushed or interrupted them."""
        if not (self._padding or self._first_kept):
            return found
        is_padding = found.is_padding
        is_flushed = ~is_padding & (found.frame < self._first_kept)
        is_void = is_padding & (found.run != self._run)
        self._sends.flushed_out += int(is_flushed.sum())
        return found.chosen(~(is_flushed | is_void))

    def flush(self) -> int:
        """Discard waiting input and replies; returns the first frame whose reply may still arrive."""
        self._interrupt()
        if not self._takes_audio:
            self._words_void = self._words - self._is_finished  # an end that was sent remains
            self._link.send(messages.ClearText(self.id))
            first_kept = 0 if self.lease is None else int(self._engine.taken[self.lease])
        else:
            first_kept = 0 if self._writer is None else self._writer.discard()
        self._first_kept, self._has_gap = first_kept, False
        if self.lease is not None:
            self._caller.first_kept[self.lease] = first_kept
        self._discard_replies()
        self._link.nudge()
        return first_kept

    def _discard_replies(self) -> None:
        """Discard the replies that wait."""
        if self.lease is not None:
            found, given_up = self._outputs.take(self.lease)
            self._sends.dropped_out += given_up
            self._sends.flushed_out += int((~found.is_padding).sum())

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float = 0.0) -> None:
        """Record that a reply was given to the socket at ``sent_s`` (the engine's clock).

        Of its latency, ``peer_wait_s`` was spent on a peer that does not read: the frame is late, but does
        not affect admission.
        """
        if not reply.is_padding:
            first_s = None
            if not self._sends.is_heard and reply.pcm is not None and self.lease is not None:
                first_s = float(self._engine.first_complete_s[self.lease])
            self._sends.sent(reply.complete_s, sent_s, peer_wait_s, first_complete_s=first_s)
            if self.lease is not None:
                self._caller.due_s[self.lease] = self._sends.due_s
            if self._final is not None:
                self._final = replace(self._final, late=self._sends.late)
        if self._watcher is not None:
            self._watcher(reply)

    def watch(self, watcher: Callable[[FrameReply], None]) -> None:
        """Call ``watcher`` with every later reply, after it was written to the socket."""
        self._watcher = watcher

    def stats(self) -> SessionStats:
        """The numbers of the session's frames so far, by outcome."""
        return self._final or self._side.consistently(self._read_stats)

    def _read_stats(self) -> SessionStats:
        if self.lease is None:
            return SessionStats(queue_frames=self.queue_frames)
        return read_stats(self._side, self.lease, self._sends, self._writer, queue=self.queue_frames)

    # Resumption and end.

    def arm(self, key: bytes, owner: str) -> None:
        """Let another connection resume the call by the token that hashes to ``key``, with this API key."""
        self._link.send(messages.Arm(self.id, key, owner))

    def note(self, notes: tuple[Note, ...], text_frame: int, kept: bytes = b"") -> None:
        """Store numbered messages before they are sent, with the text of replies to frames below
        ``text_frame``.

        ``kept`` is for the next connection of the call.
        """
        self._link.send(messages.Noted(self.id, notes, text_frame, kept))

    def acknowledge(self, seq: int) -> None:
        """Record that the client has received numbered messages up to this one."""
        self._link.send(messages.Acknowledge(self.id, seq))

    def detach(self) -> None:
        """Detach the session, whose connection has ended: the row waits. No input may be pushed, and no reply
        taken, afterwards.

        The session ends with ReplacedError when the call is resumed, with ResumeError when it expires.
        """
        self._link.send(messages.Detach(self.id))

    def close(self, error: AntiphonError | None = None) -> None:
        """End the session and free its row; waiting input, waiting replies, and replies in progress are
        discarded.
        """
        if self.state is SessionState.CLOSED:
            return
        self.error = error
        self.state, self.position = SessionState.CLOSED, None
        self._link.closed(self)
        now = self.stats()
        answered = now.silent + now.lost + now.flushed_out + now.dropped_out + now.frames_out
        self._final = replace(
            now,
            flushed_in=now.flushed_in + (now.queue_frames if self._takes_audio else 0),
            flushed_out=now.flushed_out + now.frames_taken - answered,
            queue_frames=0,
            reply_frames=0,
        )
        self.lease, self._writer = None, None
        self._link.send(messages.Close(self.id))
        self._link.changed(self)

    # From the engine.

    def handle(self, notice: messages.CallNotice) -> None:
        """Handle a message of the engine."""
        match notice:
            case messages.Admitted(_, lease):
                self.position = None
                if self.state is SessionState.QUEUED:
                    self.state = SessionState.ACTIVE if self._is_primed else SessionState.PRIMING
                    self._open(lease)
            case messages.Queued(_, position, retry_after_s):
                if self.state is SessionState.QUEUED:
                    self.position, self.retry_after_s = position, retry_after_s
            case messages.Primed(_, number):
                if self.state is SessionState.PRIMING and number == self._prompts:
                    self._is_primed, self.state = True, SessionState.ACTIVE
                    if self._is_restarting:
                        self._is_restarting = False
                        self._discard_replies()  # of the previous text: nothing was pushed since
            case messages.Resumed(_, resumption):
                self.resumption, self.parameters = resumption, resumption.parameters
            case messages.Moving():
                self.is_moving = True
            case messages.Ended(_, error):
                self.close(error)
                return
        self._link.changed(self)

    def _open(self, lease: int) -> None:
        """Begin to use a lease; the lease of a resumed call holds the counters of its frames so far."""
        self.lease, counts, caller = lease, self._engine, self._caller
        self._first_kept = int(caller.first_kept[lease])
        self._parameters = max(self._parameters, int(caller.parameters[lease]))
        caller.parameters[lease] = self._parameters
        self._sends.due_s = float(caller.due_s[lease])
        # Replies that another connection has taken and that are not replayed.
        gone = counts.silent[lease] + counts.lost[lease] + counts.flushed_out[lease]
        waits = self._outputs.written[lease] - self._outputs.taken[lease]
        self._sends.out = max(0, int(counts.taken[lease] - gone - waits))
        self._sends.is_heard = self._sends.out > 0
        if self._takes_audio:
            self._writer = InputWriter(self._inputs, lease, self._side.deliveries.refused)
            if self._is_finished:
                self._writer.finish()

    def notify(self) -> None:
        """Call the owner's ``notify``; if it raises an exception, the session ends."""
        if self._notify is None:
            return
        try:
            self._notify()
        except Exception as error:  # the owner's code: an error in it ends its session only
            Log(__name__).error("notify failed", session=self.id, exc_info=error)
            self._notify = None  # the end is another change
            self.close(SessionFailedError(f"notifying the session's owner of a change failed: {error!r}"))

"""The caller's half of a session's frames: what it brings, what it is answered, what became of each.

A channel exists as long as its session. Audio needs a lease, which comes with the row; text may come before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from antiphon.backends.base import FloatArray, TextEntry
from antiphon.errors import SessionError, UnsupportedError
from antiphon.ipc import messages
from antiphon.ipc.client_context import ClientContext, SendStats, read_stats
from antiphon.ipc.rings import InputWriter, RingReplies, as_replies
from antiphon.ipc.values import FrameReply, SessionStats, TakenReplies
from antiphon.models.sampling import SamplingParameters


class SessionBuffers:
    """The frames of one session, on one thread: the engine takes no part in that."""

    def __init__(self, call: str, side: ClientContext, send: Callable[[messages.CallRequest], None]) -> None:
        """Start with none."""
        spec, arena = side.spec, side.arena
        self._kind, self._side = spec.kind, side
        self._call, self._send = call, send
        self._caller, self._engine = arena.caller, arena.engine
        self._inputs, self._outputs = side.inputs, side.outputs
        self._takes_audio, self._is_live = spec.kind.takes_audio, spec.kind.is_live
        self._writer: InputWriter | None = None
        self._first_kept = 0  # replies to earlier frames were flushed
        self._has_gap = False  # replies were given up since the last one taken
        self._is_finished = False
        self._run = self._padding = self._padding_void = (
            0  # frames of silence asked for, and no longer wanted
        )
        self._parameters = 0  # changes
        self._words = self._words_void = 0  # sent, and flushed
        self._lease: int | None = None
        self._final: SessionStats | None = None
        self.sends = SendStats(spec, side.deliveries, is_live=spec.kind.is_live)

    @property
    def lease(self) -> int | None:
        """The lease in use."""
        return self._lease

    def open(self, lease: int) -> None:
        """Begin to use a lease; of a call that is resumed it holds what became of its frames so far."""
        self._lease = lease
        self._first_kept = int(self._caller.first_kept[lease])
        self._parameters = max(self._parameters, int(self._caller.parameters[lease]))
        self._caller.parameters[lease] = self._parameters
        self.sends.due_s = float(self._caller.due_s[lease])
        self.sends.out = self._handed_on(lease)
        self.sends.is_heard = self.sends.out > 0  # through another connection
        if self._takes_audio:
            self._writer = InputWriter(self._inputs, lease)
            if self._is_finished:
                self._writer.finish()

    def _handed_on(self, lease: int) -> int:
        """Replies that another connection has taken, and that are not to be taken again."""
        counts = self._engine
        gone = counts.silent[lease] + counts.lost[lease] + counts.flushed_out[lease]
        waits = self._outputs.written[lease] - self._outputs.taken[lease]
        return max(0, int(counts.taken[lease] - gone - waits))

    @property
    def next_frame(self) -> int:
        """The number of the first frame that has not come."""
        return 0 if self._writer is None else self._writer.frames

    def skip_to(self, frame: int) -> None:
        """Frames before this one never come: they are dropped ones."""
        if self._writer is not None:
            refused = self._writer.refused
            self._writer.skip_to(frame)
            self._count_refused(self._writer.refused - refused)

    @property
    def room_samples(self) -> int:
        """Samples that fit without dropping any; 0 where the input is text."""
        return 0 if self._writer is None else self._writer.free_samples

    @property
    def room_entries(self) -> int:
        """Words that fit; 0 where the input is audio."""
        return 0 if self._takes_audio else max(0, self._side.text_entries - self.waiting)

    @property
    def waiting(self) -> int:
        """Whole frames (tts: words) waiting for the model."""
        if not self._takes_audio:
            taken = 0 if self._lease is None else int(self._engine.words_taken[self._lease])
            return self._words - max(taken, self._words_void)
        return 0 if self._writer is None else min(self._writer.waiting, self._inputs.bound)

    @property
    def replies(self) -> int:
        """Replies waiting to be taken."""
        return 0 if self._lease is None else max(0, int(self._outputs.waiting(self._lease)))

    @property
    def _is_in_tick(self) -> bool:
        return self._lease is not None and bool(self._engine.in_tick[self._lease])

    @property
    def _is_over(self) -> bool:
        return self._lease is not None and bool(self._engine.is_over[self._lease])

    @property
    def _has_input(self) -> bool:
        if self._takes_audio or self._lease is None:
            return self.waiting > 0
        is_speaking = bool(self._engine.is_speaking[self._lease])
        return not self._has_spoken_all and (self.waiting > 0 or is_speaking)

    @property
    def _has_spoken_all(self) -> bool:
        return self._lease is not None and bool(self._engine.has_spoken_all[self._lease])

    @property
    def _is_hearing_padding(self) -> bool:
        done = 0 if self._lease is None else int(self._engine.padding_done[self._lease])
        return self._padding > max(done, self._padding_void)

    @property
    def is_begun(self) -> bool:
        """Whether anything has come that is, or will be, answered."""
        taken = 0 if self._lease is None else int(self._engine.taken[self._lease])
        return bool(taken or self.waiting or self.is_finished)

    @property
    def is_idle(self) -> bool:
        """Whether no frame waits or is being answered, and no reply waits; a frame may be unfinished."""
        return self._side.consistently(self._is_at_rest)

    def _is_at_rest(self) -> bool:
        # In this order: a frame is marked as being answered before it stops waiting, and its reply waits
        # before that mark goes.
        is_waiting = self._has_input or self._is_hearing_padding
        return not (is_waiting or self._is_in_tick or self.replies)

    @property
    def is_finished(self) -> bool:
        """Whether no more input is taken: its owner, or its last word, said so, or it took all its steps."""
        return self._is_over or self._is_finished

    @property
    def is_done(self) -> bool:
        """Whether the input is finished, answered, and every reply taken."""
        is_spent = self._is_finished and (not self._has_input if self._takes_audio else self._has_spoken_all)
        if not (is_spent or self._is_over):
            return False
        return not (self._is_in_tick or self.replies)

    def must_take(self, *, audio: bool) -> None:
        """Check that audio, or text, may be pushed.

        Raises:
            UnsupportedError: this pipeline takes the other.
        """
        if audio != self._takes_audio:
            taken = "audio, not text" if self._takes_audio else "text, not audio"
            raise UnsupportedError(f"a {self._kind} session takes {taken}")

    def push(self, pcm: FloatArray, received_s: float) -> bool:
        """Add audio; whether a whole frame waits now.

        Raises:
            SessionError: it does not fit and nothing may be dropped.
        """
        writer = self._writer
        assert writer is not None
        if not self._is_live and pcm.size > writer.free_samples:
            raise SessionError(
                f"{pcm.size} samples were pushed where {writer.free_samples} fit; "
                "read room_samples first, nothing is dropped here"
            )
        self._interrupt()
        refused = writer.refused
        writer.write(pcm, received_s)
        self._count_refused(writer.refused - refused)
        return writer.waiting > 0

    def _count_refused(self, frames: int) -> None:
        """Frames that found no slot are dropped ones."""
        if frames:
            self._side.deliveries.refused(frames)

    def hear_padding(self, frames: int, now_s: float) -> None:
        """Let so many frames of silence be heard once all audio has been, without a trace.

        Raises:
            UnsupportedError: this pipeline is live, or takes text.
        """
        if not self._takes_audio or self._is_live:
            raise UnsupportedError(f"a {self._kind} session hears nothing but what its caller sends")
        if self._writer is None or self._lease is None:
            return
        if self._engine.taken[self._lease] or self._writer.waiting:  # else there is nothing to bring out
            self._padding += frames
            tail = self._writer.unfinished
            self._send(messages.HearPadding(self._call, self._run, self._padding, frames, tail, now_s))

    def _interrupt(self) -> None:
        """The caller goes on: silence that was asked for is not heard, what was heard is undone."""
        if self._padding > self._padding_void and self._lease is not None:
            self._padding_void = self._padding
            self._run += 1
            self._caller.padding_run[self._lease] = self._run

    def change_parameters(self, parameters: SamplingParameters) -> None:
        """Use other parameters from the next frame on, which waits until the engine has them."""
        self._parameters += 1
        self._send(messages.SetParameters(self._call, self._parameters, parameters))
        if self._lease is not None:
            self._caller.parameters[self._lease] = self._parameters

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words.

        Raises:
            SessionError: they do not fit.
        """
        if len(entries) > self.room_entries:
            raise SessionError(
                f"{len(entries)} words were pushed where {self.room_entries} of "
                f"{self._side.text_entries} fit; "
                "read room_entries first, nothing is dropped here"
            )
        self._words += len(entries)
        self._is_finished |= any(entry.is_last for entry in entries)
        self._send(messages.PushText(self._call, tuple(entries), received_s))

    def finish(self) -> None:
        """No more input comes."""
        self._interrupt()
        self._is_finished = True
        if not self._takes_audio:
            self._words += 1  # the end
            self._send(messages.EndText(self._call))
        elif self._writer is not None:
            refused = self._writer.refused
            self._writer.finish()
            self._count_refused(self._writer.refused - refused)

    def take(self) -> TakenReplies:
        """All replies that wait, and the gap before them."""
        if self._lease is None or not self._outputs.has_news(self._lease):
            return TakenReplies([], None)
        found, given_up = self._outputs.take(self._lease)
        self.sends.dropped_out += given_up
        self._has_gap |= given_up > 0
        replies = as_replies(self._wanted(found))
        interrupted_at = replies[0].frame if self._has_gap and replies else None
        self._has_gap &= not replies
        given = sum(not reply.is_padding for reply in replies)
        self.sends.out += given
        self._caller.given[self._lease] += given
        return TakenReplies(replies, interrupted_at)

    def _wanted(self, found: RingReplies) -> RingReplies:
        """Without replies that the engine published while this side flushed or interrupted them."""
        if not (self._padding or self._first_kept):
            return found
        is_padding = found.is_padding
        is_flushed = ~is_padding & (found.frame < self._first_kept)
        is_void = is_padding & (found.run != self._run)
        self.sends.flushed_out += int(is_flushed.sum())
        return found.chosen(~(is_flushed | is_void))

    def flush(self) -> int:
        """Throw away what waits on either side; returns the first frame whose reply may still come."""
        self._interrupt()
        if not self._takes_audio:
            self._words_void = self._words - self._is_finished  # the end, once said, stays said
            self._send(messages.ClearText(self._call))
            first_kept = 0 if self._lease is None else int(self._engine.taken[self._lease])
        else:
            first_kept = 0 if self._writer is None else self._writer.discard()
        self._first_kept, self._has_gap = first_kept, False
        if self._lease is not None:
            self._caller.first_kept[self._lease] = first_kept
            found, given_up = self._outputs.take(self._lease)
            self.sends.dropped_out += given_up
            self.sends.flushed_out += int((~found.is_padding).sum())
        return first_kept

    def end(self) -> None:
        """Throw away everything, what is being computed included, and use the lease no more."""
        now = self.stats()
        unanswered = (
            now.frames_taken - now.silent - now.lost - now.flushed_out - now.dropped_out - now.frames_out
        )
        self._final = replace(
            now,
            flushed_in=now.flushed_in + (now.queue_frames if self._takes_audio else 0),
            flushed_out=now.flushed_out + unanswered,
            queue_frames=0,
            reply_frames=0,
        )
        self._lease, self._writer = None, None

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float) -> None:
        """A reply was handed to the socket at ``sent_s``; ``peer_wait_s`` of it went into waiting."""
        if reply.is_padding:
            return
        first_s = None
        if not self.sends.is_heard and reply.pcm is not None and self._lease is not None:
            first_s = float(self._engine.first_complete_s[self._lease])
        self.sends.sent(reply.complete_s, sent_s, peer_wait_s, first_complete_s=first_s)
        if self._lease is not None:
            self._caller.due_s[self._lease] = self.sends.due_s
        if self._final is not None:
            self._final = replace(self._final, late=self.sends.late)

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        if self._final is not None:
            return self._final
        return self._side.consistently(self._read_stats)

    def _read_stats(self) -> SessionStats:
        if self._lease is None:
            return SessionStats(queue_frames=self.waiting)
        return read_stats(self._side, self._lease, self.sends, self._writer, queue=self.waiting)

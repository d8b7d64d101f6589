"""A session's frames: those that wait, those that are answered, and what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from antiphon.backends.base import FloatArray, RowSnapshot, TextEntry
from antiphon.engine.aside import Aside, Visit
from antiphon.engine.batch import Batch, RowOutput
from antiphon.engine.config import EngineConfig
from antiphon.engine.inbox import AudioInbox, Inbox, TextInbox
from antiphon.engine.lane import Lane, TickTimes
from antiphon.engine.ledger import FrameLedger, SessionStats
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.outbox import FrameReply, Outbox, TakenReplies
from antiphon.engine.policy import POLICIES
from antiphon.engine.pressure import LatePressure
from antiphon.errors import UnsupportedError
from antiphon.models.spec import ModelSpec


class BegunFrame(NamedTuple):
    """What went into a tick: see :class:`antiphon.engine.lane.Lane`."""

    frame: int
    complete_s: float
    visit: Visit
    run: int


class Frames:
    """What one session brings and what it is answered, in order. Not thread-safe: the session locks.

    It knows nothing of rows and of who owns one: a frame goes into a tick with :meth:`begin_tick`, and
    comes back with :meth:`end_tick`.
    """

    def __init__(
        self, spec: ModelSpec, config: EngineConfig, metrics: EngineMetrics, pressure: LatePressure
    ) -> None:
        """Start with none; ``metrics`` and ``pressure`` are shared by all sessions."""
        policy = POLICIES[spec.kind]
        self._kind = spec.kind
        self._is_live = policy.is_live
        self._audio: AudioInbox | None = None
        self._text: TextInbox | None = None
        self._inbox: Inbox
        if policy.takes_audio:
            self._inbox = self._audio = AudioInbox(
                spec.frame_samples, config.input_frames, is_live=policy.is_live
            )
        else:
            self._inbox = self._text = TextInbox(config.text_entries)
        self._aside = Aside(spec.frame_samples)
        self._outbox = Outbox(config.output_frames)
        self._ledger = FrameLedger(spec, metrics, pressure)
        self._metrics = metrics
        self._is_in_tick = False
        self._is_aside_in_tick = False
        self._is_over = False  # it took as many steps as it may
        self._first_kept = 0  # replies to earlier frames were flushed

    @property
    def room_samples(self) -> int:
        """Samples that fit without dropping any; 0 where the input is text."""
        return 0 if self._audio is None else self._audio.free_samples

    @property
    def room_entries(self) -> int:
        """Words that fit; 0 where the input is audio."""
        return 0 if self._text is None else self._text.free_entries

    @property
    def waiting(self) -> int:
        """Whole frames (tts: words) waiting for the model."""
        return self._inbox.waiting

    @property
    def replies(self) -> int:
        """Replies waiting to be taken."""
        return len(self._outbox)

    @property
    def can_tick(self) -> bool:
        """Whether there is something for the next tick, and room for its reply."""
        has_frame = self._inbox.is_ready or self._aside.pending > 0
        return has_frame and not self._is_over and (self._is_live or self._outbox.has_room)

    @property
    def is_begun(self) -> bool:
        """Whether anything has come that is, or will be, answered."""
        return bool(self._ledger.taken or self._inbox.waiting or self._inbox.is_finished)

    @property
    def is_idle(self) -> bool:
        """Whether no frame waits or is being answered, and no reply waits; a frame may be unfinished."""
        is_busy = self._is_in_tick or self._is_aside_in_tick or self._aside.pending or self._inbox.is_ready
        return not is_busy and not len(self._outbox)

    @property
    def is_finished(self) -> bool:
        """Whether no more input is taken: its owner, or its last word, said so, or it took all its steps."""
        return self._is_over or self._inbox.is_finished

    @property
    def is_done(self) -> bool:
        """Whether the input is finished, answered, and every reply taken."""
        if self._is_in_tick or len(self._outbox):
            return False
        return self._is_over or self._inbox.is_spent

    def must_take_audio(self) -> None:
        """Check that audio may be pushed.

        Raises:
            UnsupportedError: this pipeline takes text.
        """
        if self._audio is None:
            raise UnsupportedError(f"a {self._kind} session takes text, not audio")

    def must_take_text(self) -> None:
        """Check that text may be pushed.

        Raises:
            UnsupportedError: this pipeline takes audio.
        """
        if self._text is None:
            raise UnsupportedError(f"a {self._kind} session takes audio, not text")

    def push(self, pcm: FloatArray, received_s: float) -> int:
        """Add audio; returns the whole frames dropped for it, oldest first.

        Raises:
            SessionError: it does not fit and nothing may be dropped.
        """
        assert self._audio is not None
        self._interrupt()
        dropped_s = self._audio.push(pcm, received_s)
        self._ledger.dropped_in(dropped_s, received_s)
        return len(dropped_s)

    def listen_aside(self, frames: int, now_s: float) -> None:
        """Let so many frames of silence be heard once all audio has been, without a trace.

        Raises:
            UnsupportedError: this pipeline is live, or takes text.
        """
        if self._audio is None or self._is_live:
            raise UnsupportedError(f"a {self._kind} session hears nothing but what its caller sends")
        if self._ledger.taken or self._inbox.is_ready:  # a row that heard nothing has nothing to bring out
            self._aside.listen(frames, self._audio.unfinished, now_s)

    def _interrupt(self) -> None:
        self._aside.interrupt()
        self._outbox.forget_aside()

    @property
    def kept(self) -> RowSnapshot | None:
        """The row's state without the silence it has heard."""
        return self._aside.kept

    @kept.setter
    def kept(self, snapshot: RowSnapshot | None) -> None:
        self._aside.kept = snapshot

    def push_text(self, entries: Sequence[TextEntry], received_s: float) -> None:
        """Add words.

        Raises:
            SessionError: they do not fit.
        """
        assert self._text is not None
        self._text.push(entries, received_s)

    def finish(self) -> None:
        """No more input comes."""
        self._interrupt()
        self._inbox.finish()

    def take(self) -> TakenReplies:
        """All replies that wait, and the gap before them."""
        taken = self._outbox.take()
        self._ledger.out += sum(not reply.is_aside for reply in taken.replies)
        return taken

    def flush(self) -> int:
        """Throw away what waits on either side; returns the first frame whose reply may still come."""
        self._interrupt()
        self._inbox.clear()
        self._ledger.flushed_out += len(self._outbox)
        self._outbox.clear()
        self._first_kept = self._inbox.next_frame
        return self._first_kept

    def end(self) -> None:
        """Throw away everything, what is being computed included."""
        self._ledger.flushed_out += self._is_in_tick
        self.flush()
        self._aside.end()

    def sent(self, reply: FrameReply, sent_s: float, peer_wait_s: float) -> None:
        """A reply was handed to the socket at ``sent_s``; ``peer_wait_s`` of it went into waiting."""
        if not reply.is_aside:
            self._ledger.sent(reply, sent_s, peer_wait_s)

    def stats(self) -> SessionStats:
        """What became of all frames so far."""
        return self._ledger.stats(self._inbox, self._outbox)

    def begin_tick(self, batch: Batch, row: int) -> BegunFrame:
        """Put one frame into the batch: the caller's if there is one, else one of silence."""
        if not self._inbox.is_ready:
            self._is_aside_in_tick = True
            visit = self._aside.take_into(batch.pcm_row(row))
            return BegunFrame(-1, self._aside.received_s, visit, self._aside.run)
        frame, complete_s = self._inbox.take_into(batch, row)
        self._ledger.take(complete_s)
        self._is_in_tick = True
        return BegunFrame(frame, complete_s, self._aside.come_back(), self._aside.run)

    def leave_tick(self) -> None:
        """The tick is over, and nothing it made counts."""
        self._is_in_tick = self._is_aside_in_tick = False

    def end_tick(self, lane: Lane, output: RowOutput | None, times: TickTimes, max_steps: int | None) -> None:
        """Queue the reply of a tick (``output`` is None when the step failed), unless it was flushed.

        With ``max_steps`` taken the session is over: input that still waits is thrown away.
        """
        if lane.visit.is_aside:
            self._end_aside(lane, output, times)
            return
        self._is_in_tick = False
        wait_ms = 1000.0 * (times.start_s - lane.complete_s)
        step_ms = 1000.0 * (times.end_s - times.start_s)
        self._ledger.time(wait_ms, step_ms)
        if output is not None:
            self._inbox.settle(output)
        if output is None or not output.emitted:
            self._ledger.no_reply(consumed=output is not None and output.consumed)
        elif lane.frame < self._first_kept:
            self._ledger.flushed_out += 1
        else:
            _, _, pcm, token, vad, _ = output
            self._reply(
                FrameReply(lane.frame, pcm, token, vad, step_ms, wait_ms, lane.complete_s, times.end_s)
            )
        if max_steps is not None and self._ledger.taken >= max_steps:
            self._is_over = True
            self._inbox.clear()

    def _end_aside(self, lane: Lane, output: RowOutput | None, times: TickTimes) -> None:
        """Queue the reply to silence, unless the caller went on meanwhile; it is in nobody's counts."""
        self._is_aside_in_tick = False
        if lane.run != self._aside.run or output is None or not output.emitted:
            return
        wait_ms = 1000.0 * (times.start_s - lane.complete_s)
        step_ms = 1000.0 * (times.end_s - times.start_s)
        _, _, pcm, token, vad, _ = output
        reply = FrameReply(-1, pcm, token, vad, step_ms, wait_ms, lane.complete_s, times.end_s, is_aside=True)
        self._outbox.put(reply)

    def _reply(self, reply: FrameReply) -> None:
        self._metrics.replies.inc()
        if self._outbox.put(reply):
            self._metrics.dropped_out.inc()

"""The memory of all leases: one block of bytes per lease, and counters as arrays over the leases.

A lease is the memory of one call. A block belongs to one call; every field of all blocks is one array, lease
first, so an engine moves frames of many calls with a few array operations. Counters are stored apart from the
blocks, each as one array over the leases, because a tick reads all of them. Each counter has one writer, so
neither side waits for a lock: the caller's half writes :class:`CallerCounts`, the engine writes
:class:`EngineCounts`. Positions start at 0 with the lease; position p of a ring is in slot ``p mod
capacity``. A ring has twice the slots of its bound, so that the reading side can enforce the bound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import NO_TOKEN, FloatArray
from antiphon.ipc.values import OUT_MARKS, RING_BOUNDS, FrameReply, Shape

Counts = NDArray[np.int64]
Times = NDArray[np.float64]

MARKS: Final = struct.Struct("=3q4d")
"""The marks of one reply, in the order of :class:`RingReplies`."""

NOT_PADDING: Final = -1
"""The run of a reply to the caller's own audio."""


class CallerCounts:
    """Counters of the caller's half, int64 ``[leases]`` each, rows of one array.

    ``written`` counts whole input frames; frames before ``discarded`` are skipped. ``taken`` counts replies
    read; replies to frames before ``first_kept`` were flushed. ``padding_run`` counts interruptions of flush
    padding. ``given`` counts replies passed to the connection. ``parameters`` counts changes of the sampling
    parameters. ``due_s``, float64, is the time at which the last reply was due.
    """

    ROWS: Final = 8

    def __init__(self, rows: Counts) -> None:
        """Name the rows of ``[ROWS, leases]``; ``written`` is the first row, which is read before the
        others.
        """
        self.written, self.discarded, self.taken, self.first_kept, self.padding_run = rows[:5]
        self.given, self.parameters = rows[5:7]
        self.due_s: Times = rows[7].view(np.float64)


class EngineCounts:
    """Counters of the engine, int64 ``[leases]`` each, rows of one array.

    ``input_taken`` counts frames read, ``output_written`` replies written; replies before
    ``output_discarded`` are given up. ``taken`` (without flush padding), ``silent``, ``lost``,
    ``dropped_in``, ``flushed_in``, ``flushed_out``: outcomes of frames. ``ticks`` counts the ticks of the
    lease; ``in_tick`` and ``is_over`` are flags. For text there are ``words_taken`` and the flags
    ``is_speaking`` and ``has_spoken_all``. ``padding_done`` counts requested frames of silence that no longer
    wait. ``first_complete_s``, float64, is the time at which the first frame was complete.
    """

    ROWS: Final = 17

    def __init__(self, rows: Counts) -> None:
        """Name the rows of ``[ROWS, leases]``."""
        self.input_taken, self.output_written, self.output_discarded = rows[:3]
        self.taken, self.silent, self.lost = rows[3:6]
        self.dropped_in, self.flushed_in, self.flushed_out = rows[6:9]
        self.ticks, self.in_tick, self.is_over = rows[9:12]
        self.words_taken, self.is_speaking, self.has_spoken_all, self.padding_done = rows[12:16]
        self.first_complete_s: Times = rows[16].view(np.float64)


class Arena:
    """The leases of one side: an engine has all leases, a front end the leases of its pool."""

    def __init__(
        self, shape: Shape, blocks: NDArray[np.void], caller: Counts, engine: Counts, turn: Counts
    ) -> None:
        """Use allocated memory; ``turn [1]`` is odd while the engine changes its counters."""
        self.shape, self.leases, self.blocks = shape, blocks.shape[0], blocks
        self._caller, self._engine, self._turn = caller, engine, turn
        self.caller, self.engine = CallerCounts(caller), EngineCounts(engine)
        self.fence: Callable[[], None] = lambda: None  # the interpreter keeps the order within one process
        self.pool_leases = 0  # front ends of other processes
        self.bells: list[Callable[[], None]] = []  # front ends of this process

    @classmethod
    def ordinary(cls, shape: Shape, leases: int) -> Arena:
        """Make an arena of all leases in the memory of this process, which the first write allocates."""
        caller, engine = (np.zeros((kind.ROWS, leases), np.int64) for kind in (CallerCounts, EngineCounts))
        return cls(shape, np.zeros(leases, shape.block), caller, engine, np.zeros(1, np.int64))

    @property
    def sequence(self) -> int:
        """The engine's sequence number: odd while the engine changes counters of the statistics, and
        different afterwards.
        """
        return int(self._turn[0])

    def writing(self) -> Seqlock:
        """Mark the engine's counters as changing: statistics read meanwhile are read again."""
        return Seqlock(self._turn)

    def read_client_counters(self) -> None:
        """Read the callers' counters; no effect in one process, where both sides use the same memory."""

    def publish(self) -> None:
        """Publish the engine's counters and wake the callers; in one process only the wake-up is needed."""
        for bell in self.bells:
            bell()

    def move(self, source: int, target: int, taken: int, again: int, parameters: int) -> None:
        """Copy one lease to another; the replies before position ``taken`` have been taken.

        The next ``again`` replies are sent a second time. The engine has applied ``parameters`` changes of
        the sampling parameters; later changes were lost with their connection.
        """
        self.blocks[target] = self.blocks[source]
        self._caller[:, target], self._engine[:, target] = self._caller[:, source], self._engine[:, source]
        self.caller.taken[target] = taken
        self.caller.given[target] -= again
        self.caller.parameters[target] = parameters

    def counters(self, lease: int) -> tuple[Counts, Counts]:
        """A copy of a lease's counters: of the caller, of the engine."""
        return self._caller[:, lease].copy(), self._engine[:, lease].copy()

    def set_counters(self, lease: int, caller: Counts, engine: Counts) -> None:
        """Set a lease's counters; only while neither side uses the lease."""
        self._caller[:, lease], self._engine[:, lease] = caller, engine

    def clear(self, lease: int) -> None:
        """Clear a lease; only while neither side uses it. Slots never written remain unallocated."""
        caller, engine = self.caller, self.engine
        self.blocks["in_pcm"][lease, : int(caller.written[lease]) + 1] = 0.0  # with an unfinished frame
        self.blocks["out_pcm"][lease, : int(engine.output_written[lease])] = 0.0
        self._caller[:, lease] = self._engine[:, lease] = 0
        caller.due_s[lease] = -np.inf


class Seqlock:
    """Makes the engine's sequence number odd during a block: see :meth:`Arena.sequence`."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Counts) -> None:
        """Count in ``turn [1]``."""
        self._turn = turn

    def __enter__(self) -> None:
        """Begin."""
        self._turn[0] += 1

    def __exit__(self, *_: object) -> None:
        """End the block, also after an error."""
        self._turn[0] += 1


class InputRings:
    """The rings of input audio: whole frames, ``pcm`` float32 ``[L, C, frame_samples]``.

    The caller's half writes ``written`` (whole frames) and ``discarded`` (earlier frames are skipped); the
    engine writes ``taken``. ``frame`` int64 ``[L, C]`` is the number of a slot's frame in the session,
    ``complete_s`` float64 ``[L, C]`` the time at which its last sample arrived. ``marks`` int64 ``[L, C, 2]``
    has both.
    """

    def __init__(self, arena: Arena) -> None:
        """The rings in this memory."""
        self.bound = arena.shape.input_frames
        self.capacity = RING_BOUNDS * self.bound
        self.frame_samples = arena.shape.input_samples
        self.pcm: FloatArray = arena.blocks["in_pcm"]
        self.marks: Counts = arena.blocks["in_marks"]
        self.frame: Counts = self.marks[:, :, 0]
        self.complete_s: Times = self.marks[:, :, 1].view(np.float64)
        self.written, self.discarded = arena.caller.written, arena.caller.discarded
        self.taken = arena.engine.input_taken
        self.fence = arena.fence

    def waiting(self, leases: Any = slice(None)) -> Counts:
        """Number of whole frames that wait, by lease. It can exceed ``bound`` until the excess is dropped."""
        waiting: Counts = self.written[leases] - np.maximum(self.taken[leases], self.discarded[leases])
        return waiting


class InputWriter:
    """The caller's half of one lease of :class:`InputRings`: takes samples in portions of any size.

    ``refused`` counts the frames that found no free slot.
    """

    def __init__(
        self, rings: InputRings, lease: int, count_refused: Callable[[int], None] = lambda _frames: None
    ) -> None:
        """Write to a cleared lease, or continue after another connection of the call."""
        self._rings, self._lease, self._count_refused = rings, lease, count_refused
        written = int(rings.written[lease])  # of another connection of the call
        self._next_frame = 1 + int(rings.frame[lease, (written - 1) % rings.capacity]) if written else 0
        self._filled = 0  # samples of the unfinished frame
        self._is_skipping = False  # the current frame found no slot
        self._received_s = 0.0
        self.refused = 0

    @property
    def frames(self) -> int:
        """Number of whole frames that arrived, including dropped frames."""
        return self._next_frame

    @property
    def waiting(self) -> int:
        """Number of whole frames that wait and are not discarded."""
        rings, lease = self._rings, self._lease
        waiting: int = rings.written.item(lease) - max(rings.taken.item(lease), rings.discarded.item(lease))
        return waiting

    @property
    def free_samples(self) -> int:
        """Number of samples that can be written before the bound is reached."""
        room = self._rings.bound - self.waiting
        return max(0, room * self._rings.frame_samples - self._filled)

    @property
    def unfinished(self) -> FloatArray:
        """A copy of the samples of the unfinished frame."""
        return self._slot[: 0 if self._is_skipping else self._filled].copy()

    @property
    def _slot(self) -> FloatArray:
        rings = self._rings
        slot: FloatArray = rings.pcm[self._lease, rings.written.item(self._lease) % rings.capacity]
        return slot

    def write(self, pcm: FloatArray, received_s: float) -> None:
        """Add float32 ``[N]``. Frames in the ring stay, because a step may be reading them.

        If too few slots are free, the oldest whole frames of these samples are refused.
        """
        size = self._rings.frame_samples
        touched = -(-(self._filled + pcm.size) // size) - (self._filled > 0 and self._is_skipping)
        rings, lease = self._rings, self._lease
        excess = touched - (rings.capacity - rings.written.item(lease) + rings.taken.item(lease))
        self._received_s = received_s
        while pcm.size:
            if self._filled == 0:
                self._is_skipping = excess > 0
                excess -= 1
            count = min(size - self._filled, pcm.size)
            if not self._is_skipping:
                self._slot[self._filled : self._filled + count] = pcm[:count]
            self._filled += count
            pcm = pcm[count:]
            if self._filled == size:
                self._end_frame()

    def _end_frame(self) -> None:
        rings, lease = self._rings, self._lease
        if self._is_skipping:
            self._refuse(1)
        else:
            written = rings.written.item(lease)
            slot = written % rings.capacity
            rings.frame[lease, slot] = self._next_frame
            rings.complete_s[lease, slot] = self._received_s
            rings.fence()
            rings.written[lease] = written + 1  # last: from here on the engine may read the slot
        self._next_frame += 1
        self._filled, self._is_skipping = 0, False

    def skip_to(self, frame: int) -> None:
        """Skip the frames before this one; call it only while no frame is unfinished."""
        if frame > self._next_frame:
            self._refuse(frame - self._next_frame)
            self._next_frame = frame

    def _refuse(self, frames: int) -> None:
        self.refused += frames
        self._count_refused(frames)

    def finish(self) -> None:
        """Pad an unfinished frame with silence."""
        if self._filled and not self._is_skipping:
            self._slot[self._filled :] = 0.0
        if self._filled:
            self._end_frame()

    def discard(self) -> int:
        """Discard all whole frames so far; returns the number of the next frame.

        The samples of an unfinished frame become silence, so that frame numbers keep their meaning.
        """
        if not self._is_skipping:
            self._slot[: self._filled] = 0.0
        self._rings.discarded[self._lease] = self._rings.written[self._lease]
        return self._next_frame


class RingReplies(NamedTuple):
    """Replies, oldest first, each array ``[n, ...]``; see :class:`OutputRings`.

    ``marks`` int64 ``[n, 7]`` hold ``frame``, ``run``, ``token`` and ``times`` of each.
    """

    marks: Counts
    pcm: FloatArray | None
    vad: FloatArray

    @classmethod
    def of(
        cls, frame: Counts, run: Counts | int, token: Any, pcm: FloatArray | None, vad: FloatArray | None
    ) -> RingReplies:
        """Replies without ``times``, which the engine writes later."""
        marks = np.empty((frame.size, OUT_MARKS), np.int64)
        marks[:, 0], marks[:, 1], marks[:, 2] = frame, run, token
        return cls(marks, pcm, np.zeros((frame.size, 0), np.float32) if vad is None else vad)

    @property
    def frame(self) -> Counts:
        """The number of the session's frame that each reply answers."""
        return self.marks[:, 0]

    @property
    def run(self) -> Counts:
        """The run of flush padding that each reply answers, or NOT_PADDING."""
        return self.marks[:, 1]

    @property
    def token(self) -> Counts:
        """Text tokens, NO_TOKEN for none."""
        return self.marks[:, 2]

    @property
    def times(self) -> Times:
        """Float64 ``[n, 4]``: step_ms, wait_ms, complete_s and replied_s."""
        return self.marks[:, 3:].view(np.float64)

    @property
    def is_padding(self) -> NDArray[np.bool_]:
        """For each reply, whether it answers flush padding."""
        is_padding: NDArray[np.bool_] = self.run != NOT_PADDING
        return is_padding

    def copy(self) -> RingReplies:
        """A copy of the replies in separate memory."""
        return RingReplies(self.marks.copy(), None if self.pcm is None else self.pcm.copy(), self.vad.copy())

    def chosen(self, which: slice | NDArray[np.bool_]) -> RingReplies:
        """The chosen replies, in the same order."""
        pcm = None if self.pcm is None else self.pcm[which]
        return RingReplies(self.marks[which], pcm, self.vad[which])


class OutputRings:
    """The rings of replies: ``marks`` ``[L, D, 7]``, ``vad`` ``[L, D, heads]``, ``pcm``.

    ``marks`` are as in :class:`RingReplies`. The engine writes ``written`` and ``discarded`` (earlier replies
    are given up); the caller's half writes ``taken``. The engine overwrites only slots whose replies it gave
    up at least a whole bound earlier. A reader checks after copying that no slot was overwritten.
    """

    def __init__(self, arena: Arena) -> None:
        """The rings in this memory."""
        blocks = arena.blocks
        self.bound = arena.shape.output_frames
        self.capacity = RING_BOUNDS * self.bound
        self.pcm: FloatArray | None = blocks["out_pcm"] if arena.shape.output_samples else None
        self.marks: Counts = blocks["out_marks"]
        self.vad: FloatArray = blocks["out_vad"]
        self.written, self.discarded = arena.engine.output_written, arena.engine.output_discarded
        self.taken, self.first_kept = arena.caller.taken, arena.caller.first_kept
        self.fence = arena.fence

    def waiting(self, leases: Any = slice(None)) -> Counts:
        """Number of replies that wait, by lease."""
        waiting: Counts = self.written[leases] - np.maximum(self.taken[leases], self.discarded[leases])
        return waiting

    def has_news(self, lease: int) -> bool:
        """Whether replies of one lease wait, or were dropped."""
        has_news: bool = self.written.item(lease) > self.taken.item(lease)
        return has_news

    def waiting_for_caller(self, lease: int) -> int:
        """Number of waiting replies of one lease that answer the caller's own frames."""
        start = max(int(self.taken[lease]), int(self.discarded[lease]))
        slots = np.arange(start, int(self.written[lease])) % self.capacity
        return int((self.marks[lease, slots, 1] == NOT_PADDING).sum())

    def publish(self, leases: Counts, replies: RingReplies) -> int:
        """Add one reply for each of ``leases [n]``; returns the number of old replies given up."""
        # Read once: a reader may take all replies in between; then none is given up.
        written, taken = self.written[leases], self.taken[leases]
        is_behind = written - taken >= self.bound
        given_up = self._give_up(leases[is_behind], taken[is_behind]) if np.count_nonzero(is_behind) else 0
        slots = written % self.capacity
        if self.pcm is not None and replies.pcm is not None:
            self.pcm[leases, slots] = replies.pcm
        if self.vad.shape[2] and replies.vad.shape[1]:
            self.vad[leases, slots] = replies.vad
        self.marks[leases, slots] = replies.marks
        self.written[leases] = written + 1  # last: from here on a session may read the slots
        return given_up

    def _give_up(self, leases: Counts, taken: Counts) -> int:
        """Make room in the full rings; returns how many waiting replies were given up."""
        start = np.maximum(taken, self.discarded[leases])
        is_full = self.written[leases] - start >= self.bound
        full = leases[is_full]
        self.discarded[full] = start[is_full] + 1
        return int(np.count_nonzero(self.taken[full] < self.discarded[full]))

    def take(self, lease: int) -> tuple[RingReplies, int]:
        """Take all waiting replies of a lease; return them, and the number of older replies given up since
        the last call.
        """
        before, end = self.taken.item(lease), self.written.item(lease)
        start = max(before, self.discarded.item(lease))
        self.fence()
        first = start % self.capacity
        if first + end - start <= self.capacity:  # one contiguous piece is copied faster
            found = self.read(lease, slice(first, first + end - start)).copy()
        else:
            found = self.read(lease, np.arange(start, end) % self.capacity)
        self.fence()
        overwritten = self.written.item(lease) - self.capacity + 1 - start  # or their overwriting has begun
        if overwritten > 0:
            found = found.chosen(slice(overwritten, None))
            start = end - found.frame.size
        self.taken[lease] = end
        return found, start - before

    def rewound(self, lease: int, frame: int, text_frame: int, replay_frames: int) -> tuple[int, int, int]:
        """The position to replay from, the frame of its reply (or of the next reply), and the number of
        replies given.

        Available replies after ``frame`` are replayed: from ``text_frame`` on, and the last ``replay_frames``
        before it.
        """
        written, taken = int(self.written[lease]), int(self.taken[lease])
        first = max(int(self.discarded[lease]), written - self.capacity + 1, 0)
        frames = self.marks[lease, np.arange(first, written) % self.capacity, 0]
        if not frames.size:
            return taken, frame + 1, 0
        wanted = max(frame + 1, min(text_frame, int(frames[-1]) + 1 - replay_frames))
        place = min(taken, first + int(np.searchsorted(frames, wanted)))
        begin = max(place, first) - first
        replay_from = int(frames[begin]) if begin < frames.size else int(frames[-1]) + 1
        again = frames[begin : max(taken, first) - first] >= self.first_kept[lease]
        return place, replay_from, int(np.count_nonzero(again))

    def read(self, leases: Any, slots: Counts | slice) -> RingReplies:
        """The replies in these slots, copied unless ``slots`` is a slice.

        :meth:`is_whole` reports which of them were not overwritten meanwhile.
        """
        pcm = None if self.pcm is None else self.pcm[leases, slots]
        return RingReplies(self.marks[leases, slots], pcm, self.vad[leases, slots])

    def is_whole(self, leases: Any, positions: Counts) -> NDArray[np.bool_]:
        """For each position, whether no part of it has been overwritten."""
        self.fence()
        is_whole: NDArray[np.bool_] = positions > self.written[leases] - self.capacity
        return is_whole


def as_replies(found: RingReplies) -> list[FrameReply]:
    """Convert replies of a ring to :class:`FrameReply` values."""
    pcm: Iterable[FloatArray | None] = repeat(None) if found.pcm is None else found.pcm
    heads = map(tuple, found.vad.tolist())
    return [
        FrameReply(
            frame,
            samples,
            None if token == NO_TOKEN else token,
            vad,
            step_ms,
            wait_ms,
            complete_s,
            replied_s,
            is_padding=run != NOT_PADDING,
        )
        for (frame, run, token, step_ms, wait_ms, complete_s, replied_s), samples, vad in zip(
            MARKS.iter_unpack(found.marks.tobytes()), pcm, heads, strict=False
        )
    ]

"""The memory of all leases: a block of bytes each for what is said, and counters as arrays over the leases.

A lease is one call's place. What lies in its block belongs to no other; every field of all blocks is one
array, lease first, so an engine moves frames of many calls with a few array operations. Counters lie apart
from the blocks, each one array over the leases: a tick looks at all of them. Each has one writer. Those of
:class:`CallerCounts` are written by the caller's half, those of :class:`EngineCounts` by the engine.
Positions count from the lease's begin; position p of a ring lies in slot ``p mod capacity``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.models.spec import ModelSpec

Counts = NDArray[np.int64]
Times = NDArray[np.float64]

PAGE_BYTES: Final = 4096
RING_BOUNDS: Final = 2
"""Slots of a ring, in units of what may wait in it: the side that reads enforces the bound."""

IN_MARKS: Final = 2
"""What is said of an input frame, side by side, so that a tick moves it at once: frame, complete_s."""
OUT_MARKS: Final = 7
"""What is said of a reply: frame, run, token, step_ms, wait_ms, complete_s, replied_s."""

RECENT_TICKS: Final = 128
"""The times in statistics are those of the last so many ticks, ten seconds of speech."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a lease has room for: ``input_frames`` and ``output_frames`` may wait; samples are of a frame.

    ``input_samples`` is 0 where the input is text, ``output_samples`` where the output is.
    """

    input_frames: int
    output_frames: int
    input_samples: int
    output_samples: int
    heads: int = 0

    @classmethod
    def of(cls, spec: ModelSpec, *, input_frames: int, output_frames: int) -> Shape:
        """What a model's calls need."""
        return cls(
            input_frames,
            output_frames,
            spec.frame_samples if spec.kind.takes_audio else 0,
            spec.frame_samples if spec.kind.gives_audio else 0,
            spec.heads,
        )

    @property
    def block(self) -> np.dtype[np.void]:
        """The block of one lease, whole pages: small fields first, so that they share the first."""
        heard, said = RING_BOUNDS * self.input_frames, RING_BOUNDS * self.output_frames
        if not self.input_samples:
            heard = 0
        fields: dict[str, tuple[Any, tuple[int, ...]]] = {
            "in_marks": (np.int64, (heard, IN_MARKS)),
            "out_marks": (np.int64, (said, OUT_MARKS)),
            "recent_ms": (np.float32, (RECENT_TICKS, 2)),
            "out_vad": (np.float32, (said, self.heads)),
            "in_pcm": (np.float32, (heard, self.input_samples)),
            "out_pcm": (np.float32, (said, self.output_samples)),
        }
        offsets, end = [], 0
        for kind, shape in fields.values():
            offsets.append(end)
            end += -(-np.dtype(kind).itemsize * int(np.prod(shape)) // 8) * 8
        layout = {"names": list(fields), "formats": list(fields.values()), "offsets": offsets}
        return np.dtype({**layout, "itemsize": -(-end // PAGE_BYTES) * PAGE_BYTES})  # type: ignore[call-overload, no-any-return]


class CallerCounts:
    """What the caller's half counts, int64 ``[leases]`` each, rows of one array.

    ``written`` whole input frames; those below ``discarded`` are not to be heard. Replies below ``taken``
    were taken, those to frames below ``first_kept`` flushed. ``padding_run`` counts interruptions of flush
    padding. ``given`` replies were handed on, neither flushed nor given up. ``parameters`` is how often the
    sampling parameters have changed. ``due_s``, float64, is when the last reply was due.
    """

    ROWS: Final = 8

    def __init__(self, rows: Counts) -> None:
        """Name the rows of ``[ROWS, leases]``; ``written`` is the first, looked at before the rest."""
        self.written, self.discarded, self.taken, self.first_kept, self.padding_run = rows[:5]
        self.given, self.parameters = rows[5:7]
        self.due_s: Times = rows[7].view(np.float64)


class EngineCounts:
    """What the engine counts, int64 ``[leases]`` each, rows of one array.

    Frames: ``input_taken``, and replies: ``output_written``; those below ``output_discarded`` are given up.
    ``taken`` (with flush padding not counted), ``silent``, ``lost``, ``dropped_in``, ``flushed_in``,
    ``flushed_out``: what became of frames. ``ticks`` the lease took part in; ``in_tick`` and ``is_over`` are
    flags. Of text: ``words_taken``, and the flags ``is_speaking`` and ``has_spoken_all``. ``padding_done``:
    frames of silence asked for that wait no more. ``first_complete_s``, float64: when the first was complete.
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
    """The leases that one side sees: an engine all of them, a front end those of its pool."""

    def __init__(
        self, shape: Shape, blocks: NDArray[np.void], caller: Counts, engine: Counts, turn: Counts
    ) -> None:
        """Use memory that is there; ``turn [1]`` is odd while the engine changes its counters."""
        self.shape, self.leases, self.blocks = shape, blocks.shape[0], blocks
        self._caller, self._engine, self._turn = caller, engine, turn
        self.caller, self.engine = CallerCounts(caller), EngineCounts(engine)
        self.fence: Callable[[], None] = _no_fence
        self.pool_leases = 0  # of each front end of another process
        self.bells: list[Callable[[], None]] = []  # of the front ends of this process

    @classmethod
    def ordinary(cls, shape: Shape, leases: int) -> Arena:
        """All leases in the memory of this process, taken as it is first written."""
        caller, engine = (np.zeros((kind.ROWS, leases), np.int64) for kind in (CallerCounts, EngineCounts))
        return cls(shape, np.zeros(leases, shape.block), caller, engine, np.zeros(1, np.int64))

    @property
    def sequence(self) -> int:
        """Odd while the engine changes what statistics are made of; another number afterwards."""
        return int(self._turn[0])

    def writing(self) -> Seqlock:
        """The engine's counters change: statistics read meanwhile are read again."""
        return Seqlock(self._turn)

    def read_client_counters(self) -> None:
        """Let the engine see what callers have counted; in one process it always does."""

    def publish(self) -> None:
        """Let callers see what the engine has counted, which in one process they always do, and wake them."""
        for bell in self.bells:
            bell()

    def move(self, source: int, target: int, taken: int, again: int, parameters: int) -> None:
        """Copy all of one lease to another, of which replies up to the place ``taken`` are taken.

        ``again`` replies that were given are to be given once more. The engine has ``parameters`` changes of
        the sampling parameters: later ones were lost with their connection.
        """
        self.blocks[target] = self.blocks[source]
        self._caller[:, target], self._engine[:, target] = self._caller[:, source], self._engine[:, source]
        self.caller.taken[target] = taken
        self.caller.given[target] -= again
        self.caller.parameters[target] = parameters

    def counters(self, lease: int) -> tuple[Counts, Counts]:
        """A copy of a lease's counters: the caller's, the engine's."""
        return self._caller[:, lease].copy(), self._engine[:, lease].copy()

    def set_counters(self, lease: int, caller: Counts, engine: Counts) -> None:
        """Let a lease have these counters; only while neither side uses it."""
        self._caller[:, lease], self._engine[:, lease] = caller, engine

    def clear(self, lease: int) -> None:
        """Let a lease begin anew; only while neither side uses it. Slots never written stay untouched."""
        caller, engine = self.caller, self.engine
        self.blocks["in_pcm"][lease, : int(caller.written[lease]) + 1] = 0.0  # with an unfinished frame
        self.blocks["out_pcm"][lease, : int(engine.output_written[lease])] = 0.0
        self._caller[:, lease] = self._engine[:, lease] = 0
        caller.due_s[lease] = -np.inf


class Seqlock:
    """The engine's turn is odd from the beginning to the end of a block, thrice a tick."""

    __slots__ = ("_turn",)

    def __init__(self, turn: Counts) -> None:
        """Count in ``turn [1]``."""
        self._turn = turn

    def __enter__(self) -> None:
        """Begin."""
        self._turn[0] += 1

    def __exit__(self, *_: object) -> None:
        """End, by an error too."""
        self._turn[0] += 1


def _no_fence() -> None:
    """In one process the interpreter keeps the order."""

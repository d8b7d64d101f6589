"""The number of rows that a machine holds, computed from bytes and measured ticks.

Memory bounds the rows that exist, time bounds the rows that are answered within a frame. Whatever can be
said about either is said in the errors, in bytes and milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes: what there is on the device, what the weights take, and what each row takes on top.

    ``taken_bytes`` of the total belong to other models already. ``cache_bytes`` are the most that kept
    prompts and voices take. ``spare_bytes`` of rings are there for any number of rows; a row's rings are
    part of ``row_bytes``.
    """

    total_bytes: int
    weights_bytes: int
    row_bytes: int
    taken_bytes: int = 0
    cache_bytes: int = 0
    spare_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """What is taken whatever the number of rows."""
        return self.weights_bytes + self.cache_bytes + self.spare_bytes

    @property
    def fixed_words(self) -> str:
        """Of what that consists."""
        caches = f" + caches {self.cache_bytes:,} bytes" if self.cache_bytes else ""
        spare = f" + spare rings {self.spare_bytes:,} bytes" if self.spare_bytes else ""
        return f"weights {self.weights_bytes:,} bytes{caches}{spare}"

    @property
    def left_bytes(self) -> int:
        """What other models have not taken."""
        return max(0, self.total_bytes - self.taken_bytes)

    @property
    def taken_words(self) -> str:
        """What there is to say about other models, if anything."""
        return (
            f" ({self.taken_bytes:,} of {self.total_bytes:,} belong to other models)"
            if self.taken_bytes
            else ""
        )

    def needed(self, rows: int) -> int:
        """Bytes for the weights, the caches and so many rows."""
        return self.fixed_bytes + rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class TickTime:
    """A tick over ``rows`` rows, all advancing, took ``seconds``."""

    rows: int
    seconds: float


def check_fit(memory: MemoryFacts, rows: int) -> None:
    """Check that so many rows fit.

    Raises:
        ConfigError: they do not; the message has all the bytes and the rows that would fit.
    """
    if memory.needed(rows) <= memory.left_bytes:
        return
    left = memory.left_bytes - memory.fixed_bytes
    fitting = max(0, left // memory.row_bytes) if memory.row_bytes else 0
    raise ConfigError(
        f"{rows} rows do not fit: {memory.fixed_words} + {rows} x {memory.row_bytes:,} "
        f"bytes = {memory.needed(rows):,} bytes, but there are {memory.left_bytes:,}{memory.taken_words}; "
        f"{fitting} rows would fit"
    )


def rows_that_fit(
    memory: MemoryFacts, *, reserve_fraction: float, at_most: int, models_waiting: int = 1
) -> int:
    """The most rows, up to ``at_most``, that leave ``reserve_fraction`` of all memory unused.

    With ``models_waiting`` models still to be made on this device, this one included, it gets an equal part
    of what is left.

    Raises:
        ConfigError: not even one does.
    """
    usable = max(0, int(memory.total_bytes * (1 - reserve_fraction)) - memory.taken_bytes) // models_waiting
    if memory.needed(1) > usable:
        shared = f", a part of {models_waiting}" if models_waiting > 1 else ""
        raise ConfigError(
            f"not even one row fits: {memory.fixed_words} + one row "
            f"{memory.row_bytes:,} bytes = {memory.needed(1):,} bytes, but only {usable:,} of "
            f"{memory.total_bytes:,} may be used{shared}{memory.taken_words}"
        )
    if memory.row_bytes == 0:
        return at_most
    return min(at_most, (usable - memory.fixed_bytes) // memory.row_bytes)


def tick_limit_s(frame_s: float, *, reserve_fraction: float, models: int = 1) -> float:
    """The longest tick that keeps frames on time.

    A frame may come just after a tick began: it waits for that one and then takes its own, so two ticks
    must fit into a frame's length, less the reserve for decoding, encoding and sending. Where several
    ``models`` share a device, their ticks make each other as much longer as there are of them.
    """
    return frame_s * (1 - reserve_fraction) / 2 / models


def steady_tick_s(*, fixed_s: float, row_s: float, calls: int, frame_s: float) -> float:
    """The length that ticks settle at, of N calls at random phases; infinite where they keep growing.

    A tick of A + b m seconds for m ready rows takes the frames that became whole during the one before. Ticks
    of T seconds meet m = N T / frame of them, so T = A / (1 - b N / frame). A frame's latency lies between T
    and 2 T.
    """
    share = row_s * calls / frame_s
    return fixed_s / (1 - share) if share < 1 else math.inf


def calls_in_time(rows: int, *, reserve_fraction: float) -> int:
    """The calls at random phases whose ticks take :func:`tick_limit_s`, which is the tick of ``rows`` rows.

    The inverse of :func:`steady_tick_s`: ticks of T seconds meet N T / frame ready rows, and at the limit T
    is ``(1 - reserve_fraction) / 2`` of a frame. Calls that all have one phase are ready together and wait
    for no tick; theirs takes less than a frame then.
    """
    return int(rows * 2 / (1 - reserve_fraction))


def rows_in_time(ticks: Sequence[TickTime], limit_s: float) -> int:
    """The most rows whose tick takes at most ``limit_s``, from measured ticks of ascending row counts.

    Between two measured row counts a tick is taken to grow along a straight line; beyond the largest one
    nothing is promised. At least 1: a machine too slow for one row still serves it, late.
    """
    rows, rows_s = 1, 0.0
    for tick in ticks:
        if tick.seconds > limit_s:
            share = (limit_s - rows_s) / (tick.seconds - rows_s)
            return max(rows, int(rows + share * (tick.rows - rows)))
        rows, rows_s = tick.rows, tick.seconds
    return rows

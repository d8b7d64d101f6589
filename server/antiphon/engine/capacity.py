"""How many rows a machine holds: arithmetic over bytes and over measured ticks.

Memory bounds the rows that exist, time bounds the rows that are answered within a frame. Whatever can be
said about either is said in the errors, in bytes and milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes: what there is on the device, what the weights take, and what each row takes on top."""

    total_bytes: int
    weights_bytes: int
    row_bytes: int

    def needed(self, rows: int) -> int:
        """Bytes for the weights and so many rows."""
        return self.weights_bytes + rows * self.row_bytes


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
    if memory.needed(rows) <= memory.total_bytes:
        return
    left = memory.total_bytes - memory.weights_bytes
    fitting = max(0, left // memory.row_bytes) if memory.row_bytes else 0
    raise ConfigError(
        f"{rows} rows do not fit: weights {memory.weights_bytes:,} bytes + {rows} x {memory.row_bytes:,} "
        f"bytes = {memory.needed(rows):,} bytes, but there are {memory.total_bytes:,}; "
        f"{fitting} rows would fit"
    )


def rows_that_fit(memory: MemoryFacts, *, reserve_fraction: float, at_most: int) -> int:
    """The most rows, up to ``at_most``, that leave ``reserve_fraction`` of all memory unused.

    Raises:
        ConfigError: not even one does.
    """
    usable = int(memory.total_bytes * (1 - reserve_fraction))
    if memory.needed(1) > usable:
        raise ConfigError(
            f"not even one row fits: weights {memory.weights_bytes:,} bytes + one row "
            f"{memory.row_bytes:,} bytes = {memory.needed(1):,} bytes, but only {usable:,} of "
            f"{memory.total_bytes:,} may be used"
        )
    if memory.row_bytes == 0:
        return at_most
    return min(at_most, (usable - memory.weights_bytes) // memory.row_bytes)


def tick_limit_s(frame_s: float, *, reserve_fraction: float) -> float:
    """The longest tick that keeps frames on time.

    A frame may come just after a tick began: it waits for that one and then takes its own, so two ticks
    must fit into a frame's length, less the reserve for decoding, encoding and sending.
    """
    return frame_s * (1 - reserve_fraction) / 2


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

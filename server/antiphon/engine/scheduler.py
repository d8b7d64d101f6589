"""What a tick covers, as arithmetic over row numbers: no clock, no threads, no model.

Every active session with a whole frame takes part in the next tick, with one frame (iteration-level
batching, after Orca, Yu et al., OSDI 2022); there is nothing to choose there. What is left to decide is
how many rows the backend runs over, and whether a row should move so that it could run over fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from antiphon.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Move:
    """A proposal to copy the state of row ``source`` to the free row ``target``."""

    source: int
    target: int


def usable_buckets(buckets: Sequence[int], *, is_fixed: bool) -> tuple[int, ...]:
    """The row counts ticks may run over: all that the backend offers, or its largest alone.

    Raises:
        ConfigError: the buckets are empty, not positive, or not ascending.
    """
    if not buckets or buckets[0] < 1 or any(low >= high for low, high in pairwise(buckets)):
        raise ConfigError(f"buckets must ascend from at least 1, the backend has {list(buckets)}")
    return (buckets[-1],) if is_fixed else tuple(buckets)


def bucket_for(rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket of at least ``rows`` rows; ``rows`` is at most the last bucket."""
    return buckets[bisect_left(buckets, rows)]


def propose_move(owned: Collection[int], buckets: Sequence[int]) -> Move | None:
    """The move that leads towards a smaller bucket for all ``owned`` rows, or None when there is none.

    The highest owned row goes to the lowest free one. Moves are proposed only while packing all owned
    rows together would save a whole bucket, and one at a time, so a tick pays for one copy at most.
    """
    if not owned:
        return None
    highest = max(owned)
    if bucket_for(len(owned), buckets) == bucket_for(highest + 1, buckets):
        return None
    target = next(row for row in range(highest) if row not in owned)
    return Move(highest, target)

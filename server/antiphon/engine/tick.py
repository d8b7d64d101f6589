"""One tick: whose frames go into it, and when it ran."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np

from antiphon.backends.base import BoolArray, StepInputs
from antiphon.engine.flush_padding import RowAction
from antiphon.ipc.arena import Counts, Times

FEW_ROWS: Final = 128
"""Up to so many sessions a tick may follow the last one after the least time as it is configured."""
LONGEST_REST: Final = 4
"""Most times as long with more: what a tick costs the host, however few rows it has, is paid less often."""

Chosen: TypeAlias = slice | BoolArray
EVERY: Final = slice(None)
"""Nearly always all places of a tick are chosen, and a slice copies no array."""


def chosen(which: BoolArray) -> Chosen:
    """Some places of a tick as an index."""
    return EVERY if np.count_nonzero(which) == which.size else which


class Tick(NamedTuple):
    """The sessions of one tick, each array ``[m]`` in one order.

    ``frame`` is the session's number of the frame, -1 for flush padding; ``complete_s`` when its last
    sample had come. ``run`` tells which silence it is, or is NOT_PADDING.
    """

    leases: Counts
    frame: Counts
    complete_s: Times
    run: Counts
    inputs: StepInputs
    actions: tuple[tuple[int, RowAction], ...] = ()
    padding: int = 0
    """How many of them hear silence that the caller did not send."""


class TickTimes(NamedTuple):
    """When a tick's step started and ended."""

    start_s: float
    end_s: float


def least_tick_s(configured_s: float, sessions: int) -> float:
    """From the begin of a short live tick to the begin of the next."""
    return configured_s * min(max(1.0, sessions / FEW_ROWS), LONGEST_REST)

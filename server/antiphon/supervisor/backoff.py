"""The delay before a front end that ended is replaced."""

from __future__ import annotations

STEADY_S = 10.0
"""A front end that lived for longer is replaced at once."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0
"""Before a front end that lived for less is replaced: doubled each time, up to the longest."""


def next_pause_s(last_s: float, lived_s: float) -> float:
    """How long to wait with a replacement, after the last wait, for a process that lived so long."""
    if lived_s >= STEADY_S:
        return 0.0
    return min(max(2 * last_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)

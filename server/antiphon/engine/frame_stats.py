"""Counts of what happened to the frames of every session, kept by the engine thread."""

from __future__ import annotations

import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.ipc.arena import RECENT_TICKS, Arena, Counts, Times
from antiphon.ipc.sends import PACE


class FrameStats:
    """What the engine thread counts for each lease; it alone writes (:class:`EngineCounts`).

    ``recent_ms`` is ``[L, RECENT_TICKS, 2]``, step and wait, the newest at ``taken mod RECENT_TICKS``.
    """

    def __init__(self, arena: Arena) -> None:
        """Count in this memory."""
        counts = arena.engine
        self.taken, self.silent, self.lost = counts.taken, counts.silent, counts.lost
        self.dropped_in, self.flushed_in = counts.dropped_in, counts.flushed_in
        self.flushed_out, self.first_complete_s = counts.flushed_out, counts.first_complete_s
        self.recent_ms: FloatArray = arena.blocks["recent_ms"]

    def take(self, leases: Counts, complete_s: Times) -> None:
        """A frame of each of ``leases [n]`` goes into a tick."""
        taken = self.taken[leases]
        if np.count_nonzero(taken) < taken.size:
            first = taken == 0
            self.first_complete_s[leases[first]] = complete_s[first]
        self.taken[leases] = taken + 1

    def time(self, leases: Counts, taken: Counts, wait_ms: Times, step_ms: float) -> None:
        """The tick, the ``taken [n]``-th of each lease, took so long, after the frames had waited so long."""
        times = np.empty((leases.size, 2), np.float32)
        times[:, 0], times[:, 1] = step_ms, wait_ms
        self.recent_ms[leases, (taken - 1) % RECENT_TICKS] = times


def overdue_frames(complete_s: Times, due_s: float, now_s: float, frame_s: float) -> int:
    """How many frames, complete at these times and dropped unheard at ``now_s``, were due long before.

    ``due_s`` is when the session's last reply was due. A frame that its sender's burst pushed out is not
    overdue, else a flood would make all others look well.
    """
    overdue = 0
    for frame_complete_s in complete_s.tolist():
        due_s = max(frame_complete_s, due_s + PACE * frame_s)
        overdue += now_s - due_s > frame_s
    return overdue

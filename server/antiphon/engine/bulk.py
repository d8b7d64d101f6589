"""Many sessions of one owner, fed and read as arrays: one call for all that came, one for all that is ready.

An owner of some hundred sessions has no time for a method call a session and frame. Its sessions are
submitted with ``notify`` None; after each tick the engine calls ``on_tick`` once, and the owner takes what
there is. Live audio only: whole frames in, replies out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.engine.ledger import PACE
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.engine.rings import Counts, Replies, Times
from antiphon.engine.rows import Rows
from antiphon.engine.session import Session, SessionState


class BulkReplies(NamedTuple):
    """Replies of several sessions; ``place`` int64 ``[n]`` is each one's place among the owner's."""

    place: Counts
    replies: Replies


class BulkOwner:
    """The owner's side of active sessions, used by one thread; of the sessions' own methods only close is."""

    def __init__(
        self,
        sessions: Sequence[Session],
        rows: Rows,
        *,
        frame_s: float,
        metrics: EngineMetrics,
        pressure: LatePressure,
    ) -> None:
        """Take over sessions that have a row; ``rows``, ``metrics`` and ``pressure`` are the engine's own."""
        assert all(session.state is SessionState.ACTIVE for session in sessions)
        leases = [session.lease for session in sessions]
        self._leases: Counts = np.array(leases, np.int64)
        self._rows, self._frame_s = rows, frame_s
        self._metrics, self._pressure = metrics, pressure
        self._next_frame: Counts = np.zeros(len(sessions), np.int64)
        self._due_s: Times = np.full(len(sessions), -np.inf)
        self.out: Counts = np.zeros(len(sessions), np.int64)
        self.late: Counts = np.zeros(len(sessions), np.int64)
        self.refused: Counts = np.zeros(len(sessions), np.int64)
        self.dropped_out: Counts = np.zeros(len(sessions), np.int64)

    def push(self, places: Counts, pcm: FloatArray, received_s: float) -> None:
        """Add one whole frame, float32 ``[n, frame_samples]``, to each of ``places`` int64 ``[n]``.

        A frame that finds no slot is refused and counted.
        """
        rings, leases = self._rows.inputs, self._leases[places]
        fits = rings.written[leases] - rings.taken[leases] < rings.capacity
        self.refused[places[~fits]] += 1
        used, at = leases[fits], places[fits]
        slots = rings.written[used] % rings.capacity
        rings.pcm[used, slots] = pcm[fits]
        rings.frame[used, slots] = self._next_frame[at]
        rings.complete_s[used, slots] = received_s
        rings.written[used] += 1
        self._next_frame[places] += 1

    def take(self) -> BulkReplies:
        """One reply of every session that has any, the oldest; call again until ``place`` is empty."""
        outputs = self._rows.outputs
        start = np.maximum(outputs.taken[self._leases], outputs.discarded[self._leases])
        places = np.flatnonzero(outputs.written[self._leases] > start)
        leases = self._leases[places]
        slots = start[places] % outputs.capacity
        found = Replies(
            outputs.frame[leases, slots],
            None if outputs.pcm is None else outputs.pcm[leases, slots],
            outputs.token[leases, slots],
            outputs.vad[leases, slots],
            outputs.times[leases, slots],
            outputs.is_aside[leases, slots],
        )
        self.dropped_out[places] += start[places] - outputs.taken[leases]
        outputs.taken[leases] = start[places] + 1
        self.out[places] += 1
        return BulkReplies(places, found)

    def sent(self, taken: BulkReplies, sent_s: float) -> None:
        """Replies were handed on at ``sent_s``: lateness, the metrics and what presses on admission."""
        complete_s = taken.replies.times[:, 2]
        due_s = np.maximum(complete_s, self._due_s[taken.place] + PACE * self._frame_s)
        self._due_s[taken.place] = due_s
        latency_s = np.maximum(sent_s - complete_s, 0.0)
        self._metrics.frame_latency_seconds.observe_many(latency_s)
        is_late = latency_s > self._frame_s
        self.late[taken.place[is_late]] += 1
        late = int(np.count_nonzero(is_late))
        if late:
            self._metrics.late_frames.inc(late)
        pressing = int(np.count_nonzero(sent_s - due_s > self._frame_s))
        self._pressure.record_many(sent_s, frames=latency_s.size, late=pressing)

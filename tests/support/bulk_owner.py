"""One owner of many live sessions with array input and output, to measure the engine's cost.

Its sessions are submitted with ``notify`` None and stay open while it works: whole frames in, replies out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.engine.engine import Engine
from antiphon.ipc.client_context import PACE
from antiphon.ipc.messages import Sent
from antiphon.ipc.rings import Counts, RingReplies, Times
from antiphon.ipc.session import Session
from antiphon.ipc.values import IN_MARKS


class BulkReplies(NamedTuple):
    """Replies of several sessions; ``place`` int64 ``[n]`` is each one's place among the owner's."""

    place: Counts
    replies: RingReplies


class BulkOwner:
    """The caller's side of active sessions, used by one thread; ``late`` int64 ``[sessions]`` is its own."""

    def __init__(self, engine: Engine, sessions: Sequence[Session]) -> None:
        """Take over sessions that have a lease."""
        leases = [session.lease for session in sessions]
        self._leases: Counts = np.array([lease for lease in leases if lease is not None], np.int64)
        assert self._leases.size == len(sessions)
        self._rows, self._record_sent, self._nudge = engine.rows, engine.record_sent, engine.wake.nudge
        self._frame_s = engine.info.spec.frame_ms / 1000.0
        self._due_s: Times = np.full(len(sessions), -np.inf)
        self._is_silent = np.ones(len(sessions), np.bool_)
        self.late: Counts = np.zeros(len(sessions), np.int64)
        none: Counts = np.zeros(0, np.int64)
        self._nothing = BulkReplies(none, self._rows.outputs.read(none, none))

    def push(self, places: Counts, pcm: FloatArray, received_s: float | Times) -> None:
        """Add one whole frame, float32 ``[n, frame_samples]``, to each of ``places [n]``; wakes the engine.

        No place occurs twice. The frames came at ``received_s``, all at once or each at its own time.
        """
        rings, leases = self._rows.inputs, self._leases[places]
        written = rings.written[leases]
        marks = np.empty((leases.size, IN_MARKS), np.int64)
        marks[:, 0], marks[:, 1].view(np.float64)[:] = written, received_s
        slots = written % rings.capacity
        rings.pcm[leases, slots], rings.marks[leases, slots] = pcm, marks
        rings.written[leases] = written + 1
        assert int((written - rings.taken[leases]).max()) < rings.capacity, "the engine has stood still"
        self._nudge()

    def take(self) -> BulkReplies:
        """One reply of every session that has any, the oldest; call again until ``place`` is empty."""
        outputs = self._rows.outputs
        places = (outputs.written[self._leases] > outputs.taken[self._leases]).nonzero()[0]
        if not places.size:
            return self._nothing
        leases = self._leases[places]
        start = np.maximum(outputs.taken[leases], outputs.discarded[leases])
        found = outputs.read(leases, start % outputs.capacity)
        assert outputs.is_whole(leases, start).all(), "the owner has read nothing for two bounds"
        outputs.taken[leases] = start + 1
        return BulkReplies(places, found)

    def sent(self, taken: BulkReplies, sent_s: float) -> None:
        """Replies were handed on at ``sent_s``: lateness, the metrics and what presses on admission."""
        place, complete_s = taken.place, taken.replies.times[:, 2]
        silent = place[self._is_silent[place]]
        self._is_silent[silent] = False
        # The first audio of a session counts from when its first frame was complete.
        first_s = sent_s - self._rows.ledger.first_complete_s[self._leases[silent]]
        due_s = np.maximum(complete_s, self._due_s[place] + PACE * self._frame_s)
        self._due_s[place] = self._rows.due_s[self._leases[place]] = due_s
        latency_s = np.maximum(sent_s - complete_s, 0.0)
        is_late = latency_s > self._frame_s
        late, pressing = int(np.count_nonzero(is_late)), 0
        if late:  # what presses is late as well
            self.late[place[is_late]] += 1
            pressing = int(np.count_nonzero(sent_s - due_s > self._frame_s))
        latencies, first = latency_s.astype(np.float32), first_s.astype(np.float32)
        self._record_sent(Sent(0, sent_s, latencies, late, pressing, first, 0))

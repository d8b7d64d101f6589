"""Many sessions of one owner, fed and read as arrays: one call for all that came, one for all that is ready.

An owner of some hundred sessions has no time for a method call a session and frame. Its sessions are
submitted with ``notify`` None; after each tick the engine calls ``on_tick`` once, and the owner takes what
there is. Live audio only: whole frames in, replies out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from antiphon.backends.base import BoolArray, FloatArray
from antiphon.engine.deliveries import MeteredDeliveries
from antiphon.engine.rows import Rows
from antiphon.ipc.arena import IN_MARKS, Counts, Times
from antiphon.ipc.rings import RingReplies
from antiphon.ipc.sends import PACE
from antiphon.ipc.session import Session


class BulkReplies(NamedTuple):
    """Replies of several sessions; ``place`` int64 ``[n]`` is each one's place among the owner's."""

    place: Counts
    replies: RingReplies


class BulkOwner:
    """The owner's side of active sessions, used by one thread; of the sessions' own methods only close is.

    The counters of a session's own ledger stay at 0; ``out``, ``late``, ``refused`` and ``dropped_out`` int64
    ``[sessions]`` take their place. A session that has closed, or was closed by a failure, is left out from
    then on. It holds its sessions' leases until :meth:`let_go`: nothing of a later session's is ever read
    or written.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        rows: Rows,
        *,
        frame_s: float,
        deliveries: MeteredDeliveries,
    ) -> None:
        """Take over sessions that have a row; ``rows`` and ``deliveries`` are the engine's own."""
        held = [rows.leases.hold(session) for session in sessions]
        self._is_held: BoolArray = np.array([lease is not None for lease in held])
        self._leases: Counts = np.array([lease or 0 for lease in held], np.int64)
        self._rows, self._frame_s = rows, frame_s
        self._deliveries = deliveries
        self._next_frame: Counts = np.zeros(len(sessions), np.int64)
        self._due_s: Times = np.full(len(sessions), -np.inf)
        self._is_heard: BoolArray = np.zeros(len(sessions), np.bool_)
        none: Counts = np.zeros(0, np.int64)
        self._nothing = BulkReplies(none, rows.outputs.read(none, none))
        self.out: Counts = np.zeros(len(sessions), np.int64)
        self.late: Counts = np.zeros(len(sessions), np.int64)
        self.refused: Counts = np.zeros(len(sessions), np.int64)
        self.dropped_out: Counts = np.zeros(len(sessions), np.int64)

    @property
    def is_open(self) -> BoolArray:
        """Which sessions have not closed, bool ``[sessions]``; leases of closed ones are let go."""
        is_closed = self._rows.is_closed[self._leases]
        if np.count_nonzero(is_closed):
            closed: list[int] = self._leases[self._is_held & is_closed].tolist()
            self._is_held &= ~is_closed
            self._rows.leases.let_go(closed)
        return self._is_held

    def let_go(self) -> None:
        """Use no session any more."""
        leases: list[int] = self._leases[self._is_held].tolist()
        self._is_held[:] = False
        self._rows.leases.let_go(leases)

    def push(self, places: Counts, pcm: FloatArray, received_s: float | Times) -> None:
        """Add one whole frame, float32 ``[n, frame_samples]``, to each of ``places`` int64 ``[n]``.

        No place occurs twice. They came at ``received_s``, or each at its own time ``[n]``. A frame that
        finds no slot is refused and counted.
        """
        is_open = self.is_open[places]
        if np.count_nonzero(is_open) < is_open.size:
            places, pcm = places[is_open], pcm[is_open]
            received_s = received_s[is_open] if isinstance(received_s, np.ndarray) else received_s
        rings, leases, frame = self._rows.inputs, self._leases[places], self._next_frame[places]
        self._next_frame[places] = frame + 1
        written = rings.written[leases]
        fits = written - rings.taken[leases] < rings.capacity
        if np.count_nonzero(fits) < fits.size:
            refused = places[~fits]
            self.refused[refused] += 1
            received_s = received_s[fits] if isinstance(received_s, np.ndarray) else received_s
            self._deliveries.refused(int(refused.size))
            leases, frame, written, pcm = leases[fits], frame[fits], written[fits], pcm[fits]
        marks = np.empty((leases.size, IN_MARKS), np.int64)
        marks[:, 0], marks[:, 1].view(np.float64)[:] = frame, received_s
        slots = written % rings.capacity
        rings.pcm[leases, slots], rings.marks[leases, slots] = pcm, marks
        rings.written[leases] = written + 1

    def take(self) -> BulkReplies:
        """One reply of every session that has any, the oldest; call again until ``place`` is empty."""
        outputs = self._rows.outputs
        has_news = outputs.written[self._leases] > outputs.taken[self._leases]
        places = (has_news & self.is_open).nonzero()[0]
        if not places.size:
            return self._nothing
        leases = self._leases[places]
        taken = outputs.taken[leases]
        start = np.maximum(taken, outputs.discarded[leases])
        found = outputs.read(leases, start % outputs.capacity)
        is_whole = outputs.is_whole(leases, start)
        if np.count_nonzero(is_whole) < is_whole.size:  # the next call has what was given up meanwhile
            places, leases, start, taken = (it[is_whole] for it in (places, leases, start, taken))
            found = found.chosen(is_whole)
        self.dropped_out[places] += start - taken
        outputs.taken[leases] = start + 1
        self.out[places] += 1
        return BulkReplies(places, found)

    def sent(self, taken: BulkReplies, sent_s: float) -> None:
        """Replies were handed on at ``sent_s``: lateness, the metrics and what presses on admission."""
        place, complete_s = taken.place, taken.replies.times[:, 2]
        self._hear(place, sent_s)
        due_s = np.maximum(complete_s, self._due_s[place] + PACE * self._frame_s)
        self._due_s[place] = due_s
        is_held = self._is_held[place]
        self._rows.due_s[self._leases[place[is_held]]] = due_s[is_held]
        latency_s = np.maximum(sent_s - complete_s, 0.0)
        is_late = latency_s > self._frame_s
        late, pressing = int(np.count_nonzero(is_late)), 0
        if late:  # what presses is late as well
            self.late[place[is_late]] += 1
            pressing = int(np.count_nonzero(sent_s - due_s > self._frame_s))
        self._deliveries.sent_many(sent_s, latency_s, late=late, pressing=pressing)

    def _hear(self, place: Counts, sent_s: float) -> None:
        """The first audio of a session is measured from when its first frame was complete."""
        is_heard = self._is_heard[place]
        if np.count_nonzero(is_heard) == is_heard.size:
            return
        first = place[~is_heard & self._is_held[place]]
        self._is_heard[first] = True
        for first_complete_s in self._rows.ledger.first_complete_s[self._leases[first]].tolist():
            self._deliveries.first_audio(sent_s - first_complete_s)

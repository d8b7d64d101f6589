"""Keeps all sessions that own rows in arrays: their readiness, the input of a tick, and its results.

A session has a lease from its admission on. The control thread sends changes; the engine thread applies them
between two ticks: it attaches a lease, gives it a row with its first frame, and detaches it after its session
has ended. No other session gets the lease before that, so a running tick can write for an ended session
without affecting another.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from antiphon.backends.base import BoolArray, FloatArray, IntArray, StepInputs
from antiphon.engine.config import EngineConfig
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.row_entry import RowAction, RowEntry
from antiphon.engine.values import (
    EVERY,
    AttachRow,
    Change,
    DetachRow,
    Event,
    FramesOverdue,
    FramesUsed,
    FreezeRow,
    MoveRow,
    RowBegun,
    RowDetached,
    RowFailed,
    RowMoved,
    RowPrimed,
    SaveRow,
    Tick,
    UpdateRow,
)
from antiphon.errors import AntiphonError
from antiphon.ipc.client_context import PACE
from antiphon.ipc.memory import MemoryLayout, SharedArena, leases_of
from antiphon.ipc.messages import CallRequest, Prime, Restart, SetParameters
from antiphon.ipc.rings import NOT_PADDING, Arena, Counts, InputRings, OutputRings, Times
from antiphon.ipc.values import RECENT_TICKS, Shape
from antiphon.models.spec import ModelSpec


class Placement:
    """Assigns the rows ``0 .. rows-1`` by the phases of sessions."""

    def __init__(self, rows: int, frame_s: float) -> None:
        """Start with all rows free."""
        self._frame_s = frame_s
        self._is_free: BoolArray = np.ones(rows, np.bool_)

    def take(self, complete_s: float) -> int:
        """Take the free row nearest to the phase of a first frame that was complete at ``complete_s``.

        The phase, from 0 to 1, is mapped onto all rows. A free row exists, because admission admits no more
        sessions than there are rows.
        """
        free = np.flatnonzero(self._is_free)
        place = (complete_s / self._frame_s) % 1.0 * self._is_free.size
        row = int(free[np.argmin(np.abs(free + 0.5 - place))])
        self._is_free[row] = False
        return row

    def give_back(self, row: int) -> None:
        """Free the row of a session that has ended."""
        self._is_free[row] = True


class FrameStats:
    """The engine thread's counters by lease (:class:`EngineCounts`); only the engine thread writes them.

    ``recent_ms`` is ``[L, RECENT_TICKS, 2]``: step and wait in milliseconds, with the newest pair at ``(taken
    - 1) % RECENT_TICKS``.
    """

    def __init__(self, arena: Arena) -> None:
        """Count in the memory of ``arena``."""
        counts = arena.engine
        self.taken, self.silent, self.lost = counts.taken, counts.silent, counts.lost
        self.dropped_in, self.flushed_in = counts.dropped_in, counts.flushed_in
        self.flushed_out, self.first_complete_s = counts.flushed_out, counts.first_complete_s
        self.recent_ms: FloatArray = arena.blocks["recent_ms"]

    def take(self, leases: Counts, complete_s: Times) -> None:
        """Count one frame for each of ``leases [n]``, taken for a tick."""
        taken = self.taken[leases]
        if np.count_nonzero(taken) < taken.size:
            first = taken == 0
            self.first_complete_s[leases[first]] = complete_s[first]
        self.taken[leases] = taken + 1

    def time(self, leases: Counts, taken: Counts, wait_ms: Times, step_ms: float) -> None:
        """Record a tick of ``step_ms`` milliseconds, which is the ``taken [n]``-th tick of each lease and
        whose frames waited ``wait_ms``.
        """
        times = np.empty((leases.size, 2), np.float32)
        times[:, 0], times[:, 1] = step_ms, wait_ms
        self.recent_ms[leases, (taken - 1) % RECENT_TICKS] = times


def overdue_frames(complete_s: Times, due_s: float, now_s: float, frame_s: float) -> int:
    """Count the frames that were long overdue when they were dropped unprocessed at ``now_s``; ``complete_s``
    has the times at which the dropped frames were complete.

    ``due_s`` is the time at which the session's last reply was due. A frame that was dropped because of its
    sender's burst is not overdue, so a flood does not count as late frames of the server.
    """
    overdue = 0
    for frame_complete_s in complete_s.tolist():
        due_s = max(frame_complete_s, due_s + PACE * frame_s)
        overdue += now_s - due_s > frame_s
    return overdue


LEASES_PER_ROW: Final = 3
"""Leases per row: for a session that ended during a tick, for the next session, and for a connection that
resumes a call.
"""

NO_LIMIT: Final = np.iinfo(np.int64).max
"""Value of ``max_steps`` that means no limit."""

LONGEST_WAIT_S: Final = 3600.0
"""Longest wait in statistics; it limits the effect of a wrong time from a caller."""

CAN_RUN: Final = (True, True, False, False, False, False, False, False)
"""Flags of a lease that may take part in a tick. It is attached and primed; it is not frozen, closed or over;
no parameters are being changed, and its state is not being read.
"""


class Rows:
    """The leases of all rows; used on the engine thread, except for ``changes``, ``events`` and
    ``is_closed``.

    The control thread sends ``changes`` and reads ``events``. ``is_closed``: the session has ended, so its
    replies are discarded. Callers write ``first_kept`` and ``due_s``, one element per lease: replies to
    frames before ``first_kept`` were flushed, and ``due_s`` is the time at which the last reply was due.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        slots: int,
        *,
        metrics: EngineMetrics,
        pools: int | None = None,
    ) -> None:
        """Allocate for ``slots`` rows, in memory that ``pools`` front ends can map, or in ordinary memory."""
        shape = Shape.of(spec, input_frames=config.input_frames, output_frames=config.output_frames)
        self.arena: Arena
        if pools is None:
            self.arena = Arena.ordinary(shape, LEASES_PER_ROW * slots)
        else:
            self.arena = SharedArena(MemoryLayout(shape, pools, leases_of(slots, pools)))
        arena, leases = self.arena, self.arena.leases
        self._flags = np.zeros((leases, len(CAN_RUN)), np.bool_)
        self._is_attached, self.is_primed, self.is_frozen, self.is_closed, self.has_ended = self._flags.T[:5]
        self.changes: deque[Change] = deque()
        self.events: deque[Event] = deque()
        self._is_behind: BoolArray = self._flags.T[5]
        self.is_saving: BoolArray = self._flags.T[6]
        self._word = self._flags.view(np.uint64)[:, 0]  # all flags of a lease, tested as one number
        self._can_run = np.array(CAN_RUN).view(np.uint64)[0]
        self.inputs, self.outputs, self.ledger = InputRings(arena), OutputRings(arena), FrameStats(arena)
        self.has_update: BoolArray = np.zeros(leases, np.bool_)
        self._padding_run = arena.caller.padding_run
        self.first_kept, self.due_s = arena.caller.first_kept, arena.caller.due_s
        self.in_tick, self.is_over = arena.engine.in_tick, arena.engine.is_over
        self.max_steps: Counts = np.full(leases, NO_LIMIT)
        self.parameters_seen: Counts = np.zeros(leases, np.int64)
        self._row: IntArray = np.full(leases, -1, np.int32)
        self._no_runs: Counts = np.full(leases, NOT_PADDING)
        self._no_runs.flags.writeable = False
        self._placement = Placement(slots, spec.frame_ms / 1000.0)
        self._is_fresh = np.zeros(leases, np.bool_)
        self._entries: list[RowEntry | None] = [None] * leases
        self.freed: list[int] = []  # rows whose sessions have ended, until the loop frees them
        self.saves: deque[SaveRow] = deque()
        self._frame_s = spec.frame_ms / 1000.0
        self._takes_audio, self._is_live = spec.kind.takes_audio, spec.kind.is_live
        self._metrics = metrics

    # Changes, between two ticks.

    def settle(self) -> None:
        """Apply the changes that the control thread sent since the last call."""
        while self.changes:
            match change := self.changes.popleft():
                case AttachRow(lease, entry):
                    self._attach(lease, entry)
                    self._is_fresh[lease] = True
                case UpdateRow(lease, request):
                    self._update(lease, request)
                case FreezeRow(lease):
                    self.is_frozen[lease] = True
                case MoveRow():
                    self._move(change)
                case DetachRow(lease):
                    self._detach(lease)
                    self.events.append(RowDetached(lease))
                case SaveRow(lease):
                    if lease is not None:
                        self.is_saving[lease], change.entry = True, self._entries[lease]
                        self.is_frozen[lease] |= change.is_leaving
                    self.saves.append(change)

    def _attach(self, lease: int, entry: RowEntry) -> None:
        self._entries[lease] = entry
        self._is_attached[lease] = self.has_update[lease] = True
        self.is_saving[lease] = self.is_frozen[lease] = self.has_ended[lease] = False
        self.is_primed[lease] = entry.prompt is None
        self._limit(lease, entry)

    def _limit(self, lease: int, entry: RowEntry) -> None:
        most = entry.parameters.max_steps
        self.max_steps[lease] = NO_LIMIT if most is None else most
        self.parameters_seen[lease] = entry.changes

    def _update(self, lease: int, request: CallRequest) -> None:
        if (entry := self._entries[lease]) is None:
            return
        entry.take(request)
        entry.updates += 1
        match request:
            case SetParameters():
                self._limit(lease, entry)
            case Prime():
                self.is_primed[lease] = False
            case Restart():
                self._restart(lease, entry)
        self.has_update[lease] = True

    def _restart(self, lease: int, entry: RowEntry) -> None:
        """Mark the row of a lease, which is in no tick, for a reset, and for its voice where it has one."""
        self.is_primed[lease], self._is_fresh[lease] = entry.prompt is None, True
        counts = self.arena.engine
        with self.arena.writing():
            counts.is_speaking[lease] = counts.has_spoken_all[lease] = False
            counts.words_taken[lease] = entry.text.taken
        self.arena.publish()
        if entry.prompt is None:
            self.events.append(RowPrimed(lease, entry.prompts, self.used(lease).came))

    def _detach(self, lease: int) -> None:
        if self._row[lease] >= 0:
            self._placement.give_back(int(self._row[lease]))
            self.freed.append(int(self._row[lease]))
        self._entries[lease], self._row[lease] = None, -1
        self._is_attached[lease] = False

    def _move(self, move: MoveRow) -> None:
        source, target = move.source, move.target
        if (entry := self._entries[source]) is None:
            return
        used = self.used(source)
        taken, replay_from, again = self.outputs.rewound(
            source, move.frame, move.text_frame, move.replay_frames
        )
        with self.arena.writing():
            self.arena.move(source, target, taken, again, entry.changes)
        successor = move.entry
        successor.parameters, successor.prompt = entry.parameters, None
        successor.is_new, successor.changes = entry.is_new, entry.changes
        self._row[target], self._row[source] = self._row[source], -1
        self._is_fresh[target] = self._is_fresh[source]
        self._detach(source)
        self._attach(target, successor)
        self.arena.publish()
        self.events.append(RowMoved(source, used, self.used(target).given, replay_from))

    def wipe(self, lease: int) -> None:
        """Clear a lease that neither the engine nor a front end uses."""
        self.arena.clear(lease)
        self.is_closed[lease] = False

    def fail(self, lease: int, error: AntiphonError) -> None:
        """Report that the session of a lease cannot continue; the lease takes part in no further tick."""
        self.is_closed[lease] = True
        self.events.append(RowFailed(lease, error))

    def unprimed(self) -> list[int]:
        """Leases that got a prompt since the last call."""
        if not np.count_nonzero(self.has_update):
            return []
        return self._unmark(np.flatnonzero(self.has_update & self._is_attached & ~self.is_primed))

    def updates(self, leases: Counts) -> list[int]:
        """The leases among ``leases`` that must apply an update before their next frame."""
        return self._unmark(leases[self.has_update[leases]])

    def _unmark(self, leases: Counts) -> list[int]:
        self.has_update[leases] = False
        return [lease for lease in leases.tolist() if not self.is_closed[lease]]

    def entry(self, lease: int) -> RowEntry:
        """The entry of an attached lease."""
        entry = self._entries[lease]
        assert entry is not None
        return entry

    def entry_or_none(self, lease: int) -> RowEntry | None:
        """The entry of a lease; None if the lease is not attached, or its session has ended."""
        return None if self.is_closed[lease] else self._entries[lease]

    def kept_states(self) -> int:
        """Number of rows whose state is saved during flush padding."""
        return sum(entry is not None and entry.padding.kept is not None for entry in self._entries)

    def row(self, lease: int, now_s: float) -> int:
        """The row of an attached lease; assigns one if it has none."""
        if self._row[lease] < 0:
            self._row[lease] = self._placement.take(self._first_complete_s(lease, now_s))
        return int(self._row[lease])

    def _first_complete_s(self, lease: int, now_s: float) -> float:
        """When the next frame of a lease was complete; the current time without a frame."""
        if not self._takes_audio or self.inputs.waiting(lease) <= 0:
            return now_s
        slot = self.inputs.taken[lease] % self.inputs.capacity
        complete_s = float(self.inputs.complete_s[lease, slot])
        return complete_s if 0.0 <= complete_s <= now_s else now_s  # a caller can write an invalid time

    def lease_of(self, row: int) -> int:
        """The lease of a row in use."""
        return int(np.flatnonzero(self._row == row)[0])

    def is_fresh(self, lease: int) -> bool:
        """Whether the row of an attached lease holds no state of its session."""
        return bool(self._is_fresh[lease])

    def mark_used(self, lease: int) -> None:
        """Mark the row as holding this session's state, from a prompt: it needs no reset."""
        if self._is_fresh[lease]:
            self._is_fresh[lease] = False
            self.events.append(RowBegun(lease))

    def used(self, lease: int) -> FramesUsed:
        """The numbers of a call's frames and replies so far; a reply that is sent again counts once."""
        self.arena.read_client_counters()
        counts = self.arena.caller
        return FramesUsed(int(counts.written[lease]), int(counts.given[lease]))

    def ready(self, now_s: float) -> Counts:
        """The leases with input for the next tick and room for its reply, int64 ``[m]``.

        Flushed frames, and frames over the bound of a live input, are removed first.
        """
        self.arena.read_client_counters()
        # A change of the parameters may arrive later than the frames after it.
        np.less(self.parameters_seen, self.arena.caller.parameters, out=self._is_behind)
        if not self._takes_audio:
            has_text = [entry is not None and entry.text.is_ready for entry in self._entries]
            return self._with_room(np.flatnonzero(has_text))
        rings = self.inputs
        leases: Counts = (rings.written > rings.taken).nonzero()[0]
        can_run = self._word[leases] == self._can_run
        written, taken, discarded = rings.written[leases], rings.taken[leases], rings.discarded[leases]
        is_plain = can_run & (discarded <= taken) & (written - taken <= rings.bound)
        if np.count_nonzero(is_plain) < leases.size:
            leases = self._forget_old(leases, now_s)
        if not self._is_live:
            return self._with_room(np.union1d(leases, self._feeding_padding()))
        return leases

    def _with_room(self, leases: Counts) -> Counts:
        """Those of ``leases`` that may run and have room for a reply, in a pipeline that drops nothing."""
        leases = leases[self._word[leases] == self._can_run]
        return leases[self.outputs.waiting(leases) < self.outputs.bound]

    def _feeding_padding(self) -> Counts:
        """The leases with flush padding to process."""
        found = []
        for lease in np.flatnonzero(self.has_update).tolist():
            if (entry := self._entries[lease]) is not None:
                entry.padding.see(int(self._padding_run[lease]))
                if entry.padding.pending > 0:
                    found.append(lease)
        return np.array(found, np.int64)

    def _forget_old(self, leases: Counts, now_s: float) -> Counts:
        """Remove flushed frames and those over the bound; returns the leases that may then run.

        Attached leases only: a session may clear any other meanwhile.
        """
        rings = self.inputs
        leases = leases[self._is_attached[leases]]
        upto = np.where(self.has_ended[leases], rings.written[leases], rings.discarded[leases])
        is_flushed = upto > rings.taken[leases]
        over = rings.written[leases] - np.maximum(upto, rings.taken[leases]) - rings.bound
        is_dropping = (over > 0) & self._is_live
        if is_flushed.any() or is_dropping.any():
            with self.arena.writing():
                self.flush(leases[is_flushed], upto[is_flushed])
                for lease, frames in zip(
                    leases[is_dropping].tolist(), over[is_dropping].tolist(), strict=True
                ):
                    self._drop(lease, frames, now_s)
            self.arena.publish()
        remaining: Counts = leases[(rings.waiting(leases) > 0) & (self._word[leases] == self._can_run)]
        return remaining

    def flush(self, leases: Counts, upto: Counts) -> None:
        """Discard the frames before the positions ``upto [n]``."""
        flushed = np.maximum(upto - self.inputs.taken[leases], 0)
        self.ledger.flushed_in[leases] += flushed
        self.inputs.taken[leases] += flushed

    def _drop(self, lease: int, frames: int, now_s: float) -> None:
        """Drop the oldest frames of one lease; long overdue ones count as late for admission."""
        rings = self.inputs
        slots = (rings.taken[lease] + np.arange(frames)) % rings.capacity
        due_s = float(self.due_s[lease])
        overdue = overdue_frames(rings.complete_s[lease, slots], due_s, now_s, self._frame_s)
        if overdue:
            self.events.append(FramesOverdue(now_s, overdue))
        self.ledger.dropped_in[lease] += frames
        rings.taken[lease] += frames
        self._metrics.dropped_in.inc(frames)

    def begin(self, leases: Counts, now_s: float, *, is_fixed: bool) -> Tick:
        """Take one frame of each of the ready ``leases [m]`` for the next step."""
        fresh, run = self._is_fresh[leases], self._no_runs[: leases.size]
        if np.count_nonzero(fresh):  # fresh until the first tick or the prompt, which set its phase
            self._is_fresh[leases] = False
            for lease in leases[self._row[leases] < 0].tolist():
                self.row(lease, now_s)
            self.events.extend(map(RowBegun, leases[fresh].tolist()))
        rows = self._row[leases]
        with self.arena.writing():
            self.in_tick[leases] = True
            if not self._takes_audio:
                offers = [self.entry(lease).text.offer() for lease in leases.tolist()]
                words = tuple(entries for entries, _, _ in offers)
                frame = np.array([index for _, index, _ in offers])
                complete_s = np.array([received_s for _, _, received_s in offers])
                self.ledger.take(leases, complete_s)
                return Tick(
                    leases, frame, complete_s, run, StepInputs(rows, fresh, None, words, is_fixed=is_fixed)
                )
            rings, taken = self.inputs, self.inputs.taken[leases]
            slots = taken % rings.capacity
            pcm, marks = rings.pcm[leases, slots], rings.marks[leases, slots]
            frame = marks[:, 0]
            complete_s = np.fmin(marks[:, 1].view(np.float64), now_s)  # a caller can write an invalid time
            np.fmax(complete_s, now_s - LONGEST_WAIT_S, out=complete_s)
            # A frame flushed since ready() is taken nevertheless, and its reply is flushed.
            has_frame = EVERY if self._is_live else rings.written[leases] > taken
            live = leases[has_frame]
            rings.taken[live] = taken[has_frame] + 1
            self.ledger.take(live, complete_s[has_frame])
        inputs = StepInputs(rows, fresh, pcm, is_fixed=is_fixed)
        tick = Tick(leases, frame, complete_s, run, inputs)
        return tick if isinstance(has_frame, slice) else self._with_silence(tick, has_frame, pcm)

    def _with_silence(self, tick: Tick, has_frame: BoolArray, pcm: FloatArray) -> Tick:
        """Start a tick in which rows without a frame process silence, and rows after silence are restored."""
        tick = tick._replace(run=tick.run.copy())
        actions: list[tuple[int, RowAction]] = []
        for place in np.flatnonzero(self.has_update[tick.leases] | ~has_frame).tolist():
            lease = int(tick.leases[place])
            padding = self.entry(lease).padding
            padding.see(int(self._padding_run[lease]))
            if has_frame[place]:
                action = padding.end_padding()
            else:
                self.has_update[lease] = True  # the silence is undone, whether or not it was interrupted
                tick.frame[place], tick.complete_s[place] = -1, padding.received_s
                action, tick.run[place] = padding.take_into(pcm[place])
                self.arena.engine.padding_done[lease] = padding.done
            if action not in (RowAction.NONE, RowAction.PAD):
                actions.append((lease, action))
        return tick._replace(actions=tuple(actions), padding=int(np.count_nonzero(~has_frame)))

    @property
    def count(self) -> int:
        """Number of sessions that the engine thread has attached."""
        return int(np.count_nonzero(self._is_attached))

    def waiting_frames(self) -> int:
        """The number of whole frames (tts: words) that wait for the model, over all sessions."""
        if self._takes_audio:
            return int(np.clip(self.inputs.waiting(), 0, self.inputs.bound).sum())
        return sum(entry.text.waiting for entry in list(self._entries) if entry is not None)

    def waiting_replies(self) -> int:
        """The number of replies that wait for their sockets, over all sessions."""
        return int(np.maximum(self.outputs.waiting(), 0).sum())

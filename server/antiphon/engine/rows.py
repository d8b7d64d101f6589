"""Every session that owns a row, as arrays: who is ready, what goes into a tick, what becomes of its results.

A session takes a lease when it is admitted; the engine thread attaches it between two ticks, gives it a row
with its first frame, and detaches it between two ticks after the session has closed. Until then the lease
belongs to no other session, so what a running tick writes for a session that has left reaches no other. A
front end of another process holds the leases of its calls: these end when both have let them go.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from antiphon.backends.base import BoolArray, FloatArray, IntArray, StepInputs
from antiphon.engine.config import EngineConfig
from antiphon.engine.flush_padding import RowAction
from antiphon.engine.frame_stats import FrameStats, overdue_frames
from antiphon.engine.leases import LEASES_PER_ROW, Leases
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.placement import Placement
from antiphon.engine.pressure import LatePressure
from antiphon.engine.sessions import NO_LIMIT, EngineSession, LeaseMarks
from antiphon.engine.tick import EVERY, Tick
from antiphon.ipc.arena import Arena, Counts, Shape
from antiphon.ipc.memory import MemoryLayout, SharedArena, leases_of
from antiphon.ipc.rings import NOT_PADDING, InputRings, OutputRings
from antiphon.models.spec import ModelSpec

LONGEST_WAIT_S: Final = 3600.0
"""No frame waits longer; a caller that says so, or something that is no time, spoils no statistics."""

CAN_RUN: Final = (True, True, False, False, False, False, False, False)
"""The flags of a lease that may take part: attached, primed; not frozen, not closed, not over, and with no
change of its parameters still under way."""


class FramesUsed(NamedTuple):
    """Frames of a call: how many came, heard or not yet, and how many replies its connections were given."""

    came: int
    given: int


class Rows:
    """The leases of all rows. Sessions use ``marks``; all else is the engine thread's.

    Callers write ``first_kept`` (replies to earlier frames were flushed) and ``due_s`` (when the last reply
    was due), one element a lease.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: EngineConfig,
        slots: int,
        *,
        metrics: EngineMetrics,
        pressure: LatePressure,
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
        self._is_behind: BoolArray = self._flags.T[5]
        self._word = self._flags.view(np.uint64)[:, 0]  # all flags of a lease are looked at as one number
        self._can_run = np.array(CAN_RUN).view(np.uint64)[0]
        self.leases: Leases[EngineSession] = Leases(self.is_closed, self._clear, pools=pools or 1)
        self.inputs, self.outputs, self.ledger = InputRings(arena), OutputRings(arena), FrameStats(arena)
        self.needs_care: BoolArray = np.zeros(leases, np.bool_)
        self._padding_run = arena.caller.padding_run
        self.first_kept, self.due_s = arena.caller.first_kept, arena.caller.due_s
        self.in_tick, self.is_over = arena.engine.in_tick, arena.engine.is_over
        self.max_steps: Counts = np.full(leases, NO_LIMIT)
        self.parameters_seen: Counts = np.zeros(leases, np.int64)
        self.marks = LeaseMarks(
            *(self.leases, arena.pool_leases, spec.frame_samples, self.max_steps, self.parameters_seen),
            *(self.is_primed, self.is_frozen, self.needs_care),
        )
        self._row: IntArray = np.full(leases, -1, np.int32)
        self._no_runs: Counts = np.full(leases, NOT_PADDING)
        self._no_runs.flags.writeable = False
        self._placement = Placement(slots, spec.frame_ms / 1000.0)
        self._is_fresh = np.zeros(leases, np.bool_)
        self._sessions: list[EngineSession | None] = [None] * leases
        self._frame_s = spec.frame_ms / 1000.0
        self._takes_audio, self._is_live = spec.kind.takes_audio, spec.kind.is_live
        self._metrics, self._pressure = metrics, pressure

    # The engine thread's side.

    def settle(self) -> None:
        """Attach and detach what changed hands since the last tick."""
        self.leases.settle(self._attach, self._detach)

    def _attach(self, lease: int, session: EngineSession) -> None:
        self._sessions[lease] = session
        self._is_attached[lease] = self._is_fresh[lease] = True

    def _detach(self, lease: int) -> None:
        if self._row[lease] >= 0:
            self._placement.give_back(int(self._row[lease]))
        self._sessions[lease], self._row[lease] = None, -1
        self._is_attached[lease] = False

    def _clear(self, lease: int) -> None:
        for flag in (self.is_primed, self.is_frozen, self.has_ended, self.needs_care):
            flag[lease] = False
        self.max_steps[lease], self.parameters_seen[lease] = NO_LIMIT, 0
        self.arena.clear(lease)

    def unprimed(self) -> list[EngineSession]:
        """Sessions that got a prompt, or another one, since the last call."""
        if not np.count_nonzero(self.needs_care):
            return []
        chosen = np.flatnonzero(self.needs_care & self._is_attached & ~self.is_primed)
        return [session for _, session in self._unmark(chosen)]

    def cared_for(self, leases: Counts) -> list[tuple[int, EngineSession]]:
        """Those of ``leases`` that need care before their next frame, with their sessions."""
        return self._unmark(leases[self.needs_care[leases]])

    def _unmark(self, leases: Counts) -> list[tuple[int, EngineSession]]:
        if not leases.size:
            return []
        self.needs_care[leases] = False  # first: a mark that comes from now on stays
        return [(lease, self.session(lease)) for lease in leases.tolist() if not self.is_closed[lease]]

    def session(self, lease: int) -> EngineSession:
        """The session that an attached lease is of."""
        session = self._sessions[lease]
        assert session is not None
        return session

    def is_attached(self, lease: int) -> bool:
        """Whether the engine thread has seen a lease."""
        return bool(self._is_attached[lease])

    def row(self, lease: int, now_s: float) -> int:
        """The row of an attached lease, which gets one now if it has none yet."""
        if self._row[lease] < 0:
            self._row[lease] = self._placement.take(self._first_complete_s(lease, now_s))
        return int(self._row[lease])

    def _first_complete_s(self, lease: int, now_s: float) -> float:
        """When the next frame of a lease was complete; the time where none has come."""
        if not self._takes_audio or self.inputs.waiting(lease) <= 0:
            return now_s
        slot = self.inputs.taken[lease] % self.inputs.capacity
        complete_s = float(self.inputs.complete_s[lease, slot])
        return complete_s if 0.0 <= complete_s <= now_s else now_s  # what callers write need not be a time

    def is_fresh(self, lease: int) -> bool:
        """Whether the row of an attached lease, if it has one, holds nothing of its session."""
        return bool(self._is_fresh[lease])

    def mark_used(self, lease: int) -> None:
        """The row holds this session's state already, by a prompt: it is not to be reset."""
        self._is_fresh[lease] = False

    def move(self, source: int, target: int, frame: int, told_frame: int, replay_frames: int) -> int:
        """Between two ticks: let another lease have the row of one, and all that was heard and said.

        Replies after ``frame`` are to be taken again: those from ``told_frame`` on and ``replay_frames``
        before the last, as far as they are there. Returns the first frame whose reply may still come.
        """
        self.arena.read_client_counters()
        taken, replay_from, again = self.outputs.rewound(source, frame, told_frame, replay_frames)
        with self.arena.writing():
            self.arena.move(source, target, taken, again, int(self.parameters_seen[source]))
        self.parameters_seen[target] = self.parameters_seen[source]
        self._row[target], self._row[source] = self._row[source], -1
        self._is_fresh[target], self.max_steps[target] = self._is_fresh[source], self.max_steps[source]
        self.is_primed[target], self.needs_care[target] = True, self.needs_care[source]
        self.arena.publish()
        return replay_from

    def used(self, lease: int) -> FramesUsed:
        """What was used of a call so far; a reply that is taken again counts as not given."""
        self.arena.read_client_counters()
        counts = self.arena.caller
        return FramesUsed(int(counts.written[lease]), int(counts.given[lease]))

    def ready(self, now_s: float) -> Counts:
        """The leases with something for the next tick and room for its reply, int64 ``[m]``.

        Frames over the bound of a live input, and flushed ones, are gone before.
        """
        self.arena.read_client_counters()
        if self.arena.pool_leases:  # messages of other processes may come later than their frames
            np.less(self.parameters_seen, self.arena.caller.parameters, out=self._is_behind)
        if not self._takes_audio:
            has_text = [session is not None and session.text.is_ready for session in self._sessions]
            return self._with_room(np.flatnonzero(has_text))
        rings = self.inputs
        leases: Counts = (rings.written > rings.taken).nonzero()[0]
        can_run = self._word[leases] == self._can_run
        written, taken, discarded = rings.written[leases], rings.taken[leases], rings.discarded[leases]
        is_plain = can_run & (discarded <= taken) & (written - taken <= rings.bound)
        if np.count_nonzero(is_plain) < leases.size:
            leases = self._forget_old(leases, now_s)
        if not self._is_live:
            return self._with_room(np.union1d(leases, self._hearing_padding()))
        return leases

    def _with_room(self, leases: Counts) -> Counts:
        """Those of ``leases``, of a pipeline that drops nothing, that may run and whose reply has room."""
        leases = leases[self._word[leases] == self._can_run]
        return leases[self.outputs.waiting(leases) < self.outputs.bound]

    def _hearing_padding(self) -> Counts:
        """The leases with flush padding to be heard."""
        found = []
        for lease in np.flatnonzero(self.needs_care).tolist():
            session = self._sessions[lease]
            if session is not None:
                session.padding.see(int(self._padding_run[lease]))
                if session.padding.pending > 0:
                    found.append(lease)
        return np.array(found, np.int64)

    def _forget_old(self, leases: Counts, now_s: float) -> Counts:
        """Take flushed frames and those over the bound out of the rings; returns who may run after that.

        Attached leases only: a session may clear another meanwhile.
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
        """Frames below the positions ``upto [n]`` are not to be heard."""
        flushed = np.maximum(upto - self.inputs.taken[leases], 0)
        self.ledger.flushed_in[leases] += flushed
        self.inputs.taken[leases] += flushed

    def _drop(self, lease: int, frames: int, now_s: float) -> None:
        """The oldest frames of one lease give way, and press on admission if they were due long before."""
        rings = self.inputs
        slots = (rings.taken[lease] + np.arange(frames)) % rings.capacity
        due_s = float(self.due_s[lease])
        overdue = overdue_frames(rings.complete_s[lease, slots], due_s, now_s, self._frame_s)
        if overdue:
            self._pressure.record_many(now_s, frames=overdue, late=overdue)
        self.ledger.dropped_in[lease] += frames
        rings.taken[lease] += frames
        self._metrics.dropped_in.inc(frames)

    def begin(self, leases: Counts, now_s: float, *, is_fixed: bool) -> Tick:
        """Take a frame of each of ``leases [m]``, which are ready, for the next step."""
        fresh, run = self._is_fresh[leases], self._no_runs[: leases.size]
        if np.count_nonzero(fresh):  # a row is fresh until its first tick, or its prompt, which give it
            self._is_fresh[leases] = False
            for lease in leases[self._row[leases] < 0].tolist():
                self.row(lease, now_s)
        rows = self._row[leases]
        with self.arena.writing():
            self.in_tick[leases] = True
            if not self._takes_audio:
                offers = [self.session(lease).text.offer() for lease in leases.tolist()]
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
            complete_s = np.fmin(marks[:, 1].view(np.float64), now_s)  # callers' need not be times
            np.fmax(complete_s, now_s - LONGEST_WAIT_S, out=complete_s)
            # What was flushed since ready() is taken nevertheless, and its reply is flushed.
            has_frame = EVERY if self._is_live else rings.written[leases] > taken
            live = leases[has_frame]
            rings.taken[live] = taken[has_frame] + 1
            self.ledger.take(live, complete_s[has_frame])
        inputs = StepInputs(rows, fresh, pcm, is_fixed=is_fixed)
        tick = Tick(leases, frame, complete_s, run, inputs)
        return tick if isinstance(has_frame, slice) else self._with_silence(tick, has_frame, pcm)

    def _with_silence(self, tick: Tick, has_frame: BoolArray, pcm: FloatArray) -> Tick:
        """A tick in which rows without a frame hear silence, and those that heard some go back."""
        tick = tick._replace(run=tick.run.copy())
        actions: list[tuple[int, RowAction]] = []
        for place in np.flatnonzero(self.needs_care[tick.leases] | ~has_frame).tolist():
            lease = int(tick.leases[place])
            padding = self.session(lease).padding
            padding.see(int(self._padding_run[lease]))
            if has_frame[place]:
                action = padding.come_back()
            else:
                self.needs_care[lease] = True  # interrupted since ready() or not: the silence is undone
                tick.frame[place], tick.complete_s[place] = -1, padding.received_s
                action, tick.run[place] = padding.take_into(pcm[place])
                self.arena.engine.padding_done[lease] = padding.done
            if action not in (RowAction.NONE, RowAction.PAD):
                actions.append((lease, action))
        return tick._replace(actions=tuple(actions), padding=int(np.count_nonzero(~has_frame)))

    @property
    def count(self) -> int:
        """Sessions that the engine thread has seen."""
        return int(np.count_nonzero(self._is_attached))

    def waiting_frames(self) -> int:
        """Whole frames (tts: words) that wait for the model, all sessions together."""
        if self._takes_audio:
            return int(np.clip(self.inputs.waiting(), 0, self.inputs.bound).sum())
        return sum(session.text.waiting for session in list(self._sessions) if session is not None)

    def waiting_replies(self) -> int:
        """Replies that wait for their sockets, all sessions together."""
        return int(np.maximum(self.outputs.waiting(), 0).sum())

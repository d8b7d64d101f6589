"""The thread that runs the backend: it sleeps until a session is ready, then runs a tick.

A tick takes one frame of every ready session (iteration-level batching, after Orca, Yu et al., OSDI 2022).
Sessions that become ready during a tick take part in the next one. The thread sleeps on a wake-up, with a
timeout while a session waits in the queue, a call has no connection or a call is moving to another worker.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import numpy as np

from antiphon.backends.base import NO_STAGES, NO_TOKEN, Backend, BoolArray, Paged, StepOutputs
from antiphon.engine.metrics import EngineMetrics, LatePressure
from antiphon.engine.pieces import PrimingQueue, SavingQueue
from antiphon.engine.row_entry import RowAction
from antiphon.engine.rows import Rows
from antiphon.engine.trace import Tracer
from antiphon.engine.values import EVERY, EngineLost, Tick, TickTimes
from antiphon.errors import SessionFailedError, StepError, UnsupportedError
from antiphon.ipc.memory import hush, ring
from antiphon.ipc.rings import Counts, RingReplies, Times
from antiphon.log import Log
from antiphon.models.spec import ModelSpec

NO_PAGES: Final = (
    "no memory is left for older sessions: the server admits more than its GPU holds (overcommit), and the "
    "youngest session ends"
)

Chosen: TypeAlias = slice | BoolArray
"""An index that selects positions in a tick."""


class Results:
    """Publishes the results of ticks to :class:`antiphon.engine.rows.Rows`; used on the engine thread
    only."""

    def __init__(self, rows: Rows, spec: ModelSpec, metrics: EngineMetrics) -> None:
        """Publish to the leases of ``rows``."""
        self._rows, self._metrics = rows, metrics
        self._takes_audio = spec.kind.takes_audio
        self._has_deadlines = spec.kind.has_deadlines
        self._delay_frames = spec.delay_frames

    def end(self, tick: Tick, outputs: StepOutputs | None, times: TickTimes) -> None:
        """Publish a tick's replies and count the outcome of its frames; ``outputs`` is None if the step
        failed."""
        leases = tick.leases
        self._rows.arena.read_client_counters()
        self._rows.arena.engine.ticks[leases] += 1
        step_ms = 1000.0 * (times.end_s - times.start_s)
        wait_s = times.start_s - tick.complete_s
        wait_ms = 1000.0 * wait_s
        is_here = ~self._rows.is_closed[leases]
        is_live = is_here & (tick.frame >= 0) if tick.padding else is_here
        live = chosen(is_live)
        with self._rows.arena.writing():
            live_leases = leases[live]
            taken = self._rows.ledger.taken[live_leases]
            self._rows.ledger.time(live_leases, taken, wait_ms[live], step_ms)
            replies = 0
            if outputs is None:
                self._count_silent(live_leases, np.zeros(taken.size, np.bool_))
            else:
                if not self._takes_audio:
                    self._settle_texts(tick, outputs)
                replies = self._reply(tick, outputs, is_here, is_live, wait_ms, times)
            self._end_sessions(live_leases, taken)
            self._rows.in_tick[leases] = False
        self._rows.arena.publish()
        if self._has_deadlines:
            self._metrics.frame_wait_seconds.observe_many(wait_s[live])
        self._metrics.replies.inc(replies)

    def _reply(
        self,
        tick: Tick,
        outputs: StepOutputs,
        is_here: BoolArray,
        is_live: BoolArray,
        wait_ms: Times,
        times: TickTimes,
    ) -> int:
        """Publish replies that have a reader and count the others; returns the number of replies to callers'
        own frames."""
        is_kept = tick.frame >= self._rows.first_kept[tick.leases]
        is_wanted = is_live & outputs.emitted & is_kept
        wanted = int(np.count_nonzero(is_wanted))
        if wanted == is_wanted.size:  # nearly always
            self._publish(tick, outputs, EVERY, wait_ms, times)
            return wanted
        is_silent = is_live & ~outputs.emitted
        self._count_silent(tick.leases[is_silent], outputs.consumed[is_silent])
        self._rows.ledger.flushed_out[tick.leases[is_live & outputs.emitted & ~is_kept]] += 1
        is_published = is_wanted | (is_here & ~is_live & outputs.emitted)  # replies to flush padding, too
        if np.count_nonzero(is_published):
            self._publish(tick, outputs, is_published, wait_ms, times)
        return wanted

    def _settle_texts(self, tick: Tick, outputs: StepOutputs) -> None:
        finished = np.zeros(tick.leases.size, np.bool_) if outputs.finished is None else outputs.finished
        flags = zip(outputs.consumed.tolist(), outputs.emitted.tolist(), finished.tolist(), strict=True)
        for lease, (consumed, emitted, is_finished) in zip(tick.leases.tolist(), flags, strict=True):
            self._rows.entry(lease).text.end_step(consumed=consumed, emitted=emitted, finished=is_finished)
            self._show_text(lease)

    def _show_text(self, lease: int) -> None:
        counts, text = self._rows.arena.engine, self._rows.entry(lease).text
        # In this order: a row is marked as speaking before a word stops waiting.
        counts.is_speaking[lease], counts.has_spoken_all[lease] = text.is_busy, text.has_spoken_all
        counts.words_taken[lease] = text.taken

    def _count_silent(self, leases: Counts, consumed: BoolArray) -> None:
        """Count frames without a reply: silent in a duplex row's first frames and for tts, else lost."""
        by_design = consumed & (self._rows.ledger.taken[leases] <= self._delay_frames)
        if not self._has_deadlines:
            by_design = np.ones(leases.size, np.bool_)
        self._rows.ledger.silent[leases[by_design]] += 1
        lost = leases[~by_design]
        self._rows.ledger.lost[lost] += 1
        if lost.size:
            self._metrics.lost_frames.inc(int(lost.size))

    def _publish(
        self, tick: Tick, outputs: StepOutputs, wanted: Chosen, wait_ms: Times, times: TickTimes
    ) -> None:
        tokens = NO_TOKEN if outputs.text_tokens is None else outputs.text_tokens[wanted]
        pcm = None if outputs.pcm is None else outputs.pcm[wanted]
        vad = None if outputs.vad is None else outputs.vad[wanted]
        replies = RingReplies.of(tick.frame[wanted], tick.run[wanted], tokens, pcm, vad)
        said = replies.times
        said[:, 0], said[:, 1] = 1000.0 * (times.end_s - times.start_s), wait_ms[wanted]
        said[:, 2], said[:, 3] = tick.complete_s[wanted], times.end_s
        given_up = self._rows.outputs.publish(tick.leases[wanted], replies)
        if given_up:
            self._metrics.dropped_out.inc(given_up)

    def _end_sessions(self, leases: Counts, taken: Counts) -> None:
        """End sessions that reached their number of steps, and discard their waiting input."""
        is_over = taken >= self._rows.max_steps[leases]
        if not np.count_nonzero(is_over):
            return
        over = leases[is_over]
        self._rows.is_over[over] = self._rows.has_ended[over] = True
        if self._takes_audio:
            self._rows.flush(over, self._rows.inputs.written[over])
            return
        for lease in over.tolist():
            self._rows.entry(lease).text.clear()
            self._show_text(lease)


def chosen(which: BoolArray) -> Chosen:
    """The index that selects the positions of a tick for which ``which`` is true."""
    return EVERY if np.count_nonzero(which) == which.size else which


TRACK = "engine"

FEW_ROWS: Final = 128
"""Up to this number of sessions two ticks are at least the configured minimum time apart."""
LONGEST_REST: Final = 4
"""Maximum factor on that minimum time with more sessions, because a tick has a fixed cost on the host."""

LONGEST_S: Final = 3600.0
"""Longest sleep: ``poll`` takes milliseconds as an int, and one wake-up an hour costs nothing."""


class Wake:
    """A flag that any thread may raise, and that the engine thread waits for."""

    def __init__(self) -> None:
        """Start with the flag lowered."""
        self._raised = threading.Event()
        self._is_stopped = False

    def nudge(self) -> None:
        """Wake the engine thread: a frame is complete, a row has a new session, or a deadline has changed."""
        if not self._raised.is_set():  # one wake-up is enough: the thread checks everything
            self._raised.set()

    def stop(self) -> None:
        """Wake the engine thread for the last time."""
        self._is_stopped = True
        self._raised.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the flag is raised or the time is over, and lower the flag; return false once
        stopped.
        """
        if not self._is_stopped and timeout_s != 0:
            self._raised.wait(timeout_s)
        self._raised.clear()  # cleared before the thread checks, so it sees later requests
        return not self._is_stopped


class EventWake(Wake):
    """A flag that other processes may raise too, through the eventfd ``descriptor``."""

    def __init__(self) -> None:
        """Start with the flag lowered."""
        super().__init__()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    def nudge(self) -> None:
        """Wake the engine thread."""
        ring(self.descriptor)

    def stop(self) -> None:
        """Wake the engine thread for the last time."""
        self._is_stopped = True
        ring(self.descriptor)

    def wait(self, timeout_s: float | None) -> bool:
        """Sleep until the flag is raised or the time is over, and lower the flag; return false once
        stopped.
        """
        if not self._is_stopped:
            self._poll.poll(None if timeout_s is None else 1000 * min(timeout_s, LONGEST_S))
        hush(self.descriptor)
        return not self._is_stopped


class EngineLoop:
    """Runs ticks until it is stopped. ``tick_once`` is one iteration, and can be called directly.

    It applies ``rows.changes`` before a tick and puts events into ``rows.events``. ``notify`` wakes the
    reader of the events, also at the time ``due_s``, which the reader sets. Any error except a StepError, in
    a tick or between ticks, ends the loop and is its last event. ``on_tick`` is called after every tick, when
    its replies can be taken.
    """

    def __init__(
        self,
        backend: Backend,
        rows: Rows,
        wake: Wake,
        *,
        is_fixed: bool,
        padding_rows: int,
        least_tick_s: float,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        pressure: LatePressure,
        notify: Callable[[], None],
        on_tick: Callable[[], None] | None,
        tracer: Tracer | None,
    ) -> None:
        """Start without sessions; with ``is_fixed`` every tick computes all rows."""
        self._backend = backend
        is_shared = isinstance(backend, Paged) and backend.page_count() is not None
        self._paged = cast("Paged", backend) if is_shared else None
        self._rows = rows
        self._wake = wake
        self._is_fixed = is_fixed
        self._padding_rows = padding_rows
        self._least_tick_s = least_tick_s
        self._clock = clock
        self._metrics = metrics
        self._pressure = pressure
        self.notify = notify
        self.due_s = math.inf
        self._on_tick = on_tick
        self._tracer = tracer
        spec = backend.info.spec
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind.has_deadlines
        self._is_live = spec.kind.is_live
        self._priming = PrimingQueue(backend, rows, metrics)
        self._saving = SavingQueue(backend, rows, clock)
        self._results = Results(rows, spec, metrics)
        self._busy_since_s: float | None = None
        self._began_s = 0.0
        self._has_ticked = False
        self.is_lost = False
        self.is_over = False

    def busy_s(self, now_s: float) -> float:
        """Seconds up to ``now_s`` that the backend has worked on the current tick (parameters and step); 0
        between ticks.
        """
        since_s = self._busy_since_s
        return 0.0 if since_s is None else max(0.0, now_s - since_s)

    def run(self) -> None:
        """Run ticks until :meth:`Wake.stop` is called or the device is lost."""
        try:
            while not self.is_lost and self._sleep():
                while self.tick_once():  # waiting frames need no further wake-up
                    self._rest()
                    if not self._wake.wait(0.0):
                        return
        finally:
            self.end_saves()

    def end_saves(self) -> None:
        """Fail the saves that wait for a tick, because no further tick follows."""
        self.is_over = True
        self._saving.fail()

    def _rest(self) -> None:
        """Pause after a very short tick, so that more frames take part in the next.

        Live frames arrive in real time. Recordings and prompts do not wait for more frames.
        """
        if not (self._has_ticked and self._is_live):
            return
        least_s = least_tick_s(self._least_tick_s, self._rows.count)
        left_s = least_s - (self._clock() - self._began_s)
        if left_s > 0:
            time.sleep(min(left_s, least_s))

    def _sleep(self) -> bool:
        """Wait for work; false when stopped, or when the wait failed."""
        try:
            return self._wake.wait(self._timeout_s())
        except Exception as error:  # no caller above this thread would get the error
            self._lose(error)
            return False

    def tick_once(self) -> bool:
        """Apply all due changes, then run one tick if any session is ready, and one piece of a prompt if
        there is one.

        Returns whether a tick or a piece was run.
        """
        try:
            now_s = self._busy_since_s = self._began_s = self._clock()
            self._settle()
            if self._rows.events or now_s >= self.due_s:
                self.due_s = math.inf
                self.notify()
            tick = self._gather(now_s)
            self._has_ticked = tick is not None
            if tick is not None:
                self._tick(tick)
            if is_saving := bool(self._rows.saves):
                self._saving.advance(now_s)
            is_working = self._prime(now_s) or is_saving or tick is not None
            if self._rows.events:
                self.notify()
            return is_working
        except Exception as error:  # after any error the model's state cannot be trusted
            self._lose(error)
            return False
        finally:
            self._busy_since_s = None

    def _lose(self, error: Exception) -> None:
        self.is_lost = True
        self.end_saves()
        self._rows.events.append(EngineLost(error))
        self.notify()

    def _timeout_s(self) -> float | None:
        if self.due_s == math.inf:
            return None
        return min(max(0.0, self.due_s - self._clock()), threading.TIMEOUT_MAX)

    def _gather(self, now_s: float) -> Tick | None:
        """Everything for the next step, or None when no session is ready."""
        start_s = self._clock()
        self._settle()  # events of the last tick are answered at once where no other thread decides
        for lease in self._rows.unprimed():
            self._priming.add(lease)
        leases = self._rows.ready(now_s)
        if not leases.size:
            return None
        # Sessions that end here are excluded. A row ready since then has neither parameters nor pages yet.
        if self._apply_updates(leases, now_s):
            leases = leases[~self._rows.is_closed[leases]]
        if self._paged is not None and leases.size and self._evict(self._paged, leases, now_s):
            leases = leases[~self._rows.is_closed[leases]]
        if not leases.size:
            return None
        now_s = self._clock()  # frames here by now were complete earlier
        tick = self._rows.begin(leases, now_s, is_fixed=self._is_fixed)
        self._record("gather", start_s, sessions=len(leases))
        return tick

    def _settle(self) -> None:
        """Apply the changes of the control thread, which also free the memory of ended rows."""
        self._rows.settle()
        if self._paged is not None:
            for row in self._rows.freed:
                self._paged.release(row)
        self._rows.freed.clear()

    def _evict(self, paged: Paged, leases: Counts, now_s: float) -> bool:
        """End the youngest sessions until all ready ones have pages; returns whether one ended.

        Overcommit only: by default each row has the pages of its whole window.
        """
        rows = np.array([self._rows.row(lease, now_s) for lease in leases.tolist()], np.int32)
        fresh = np.array([self._rows.is_fresh(lease) for lease in leases.tolist()], np.bool_)
        evicted = paged.make_room(rows, fresh)
        for row in evicted:
            self._metrics.evicted_sessions.inc()
            self._rows.fail(self._rows.lease_of(row), SessionFailedError(NO_PAGES))
        return bool(evicted)

    def _prime(self, now_s: float) -> bool:
        if not self._priming.leases:
            return False
        start_s = self._clock()
        is_done = self._priming.advance(now_s)
        self._record("prompt", start_s)
        return is_done

    def _apply_updates(self, leases: Counts, now_s: float) -> bool:
        """Give rows their new parameters; returns whether a session ended, as the backend cannot use them."""
        has_ended = False
        for lease in self._rows.updates(leases):
            entry = self._rows.entry(lease)
            if entry.padding.is_busy:
                self._rows.has_update[lease] = True
            if (parameters := entry.new_parameters()) is None:
                continue
            try:
                self._backend.set_parameters(self._rows.row(lease, now_s), parameters)
            except UnsupportedError as error:
                words = f"the model cannot use these parameters: {error}"
                self._rows.fail(lease, SessionFailedError(words))
                has_ended = True
        return has_ended

    def _exchange_state(self, lease: int, action: RowAction) -> None:
        """Save a row's state before silence that the caller did not send, or restore it after the silence."""
        padding, row = self._rows.entry(lease).padding, self._rows.row(lease, self._clock())
        if action.puts_back and padding.kept is not None:
            self._backend.restore(row, padding.kept)
            if action is RowAction.RESTORE:
                padding.kept = None
        elif action is RowAction.SAVE and self._rows.kept_states() < self._padding_rows:
            padding.kept = self._backend.snapshot(row)

    def _tick(self, tick: Tick) -> None:
        for lease, action in tick.actions:
            self._exchange_state(lease, action)
        inputs = tick.inputs
        physical = self._backend.plan(inputs.rows, is_fixed=self._is_fixed)
        count = inputs.rows.size
        self._metrics.frames_taken.inc(count - tick.padding)
        if tick.padding:
            self._metrics.padding_frames.inc(tick.padding)
        self._metrics.batch_rows.observe(count)
        self._metrics.physical_rows.observe(physical)
        start_s = self._clock()
        if self._has_deadlines:
            self._pressure.begin_step(start_s, rows=count, frame_s=self._frame_s)
        outputs, failure = None, None
        try:
            outputs = self._backend.step(inputs)
        except StepError as error:
            failure = error
        finally:
            self._pressure.end_step()
        end_s = self._clock()
        self._metrics.tick_seconds.observe(end_s - start_s)
        if self._tracer is not None:
            self._tracer.span("step", start_s, end_s, track=TRACK, rows=count, physical=physical)
        if failure is not None:
            self._fail(failure, tick)
        self._scatter(tick, outputs, TickTimes(start_s, end_s))

    def _fail(self, failure: StepError, tick: Tick) -> None:
        """End the sessions of the rows that failed; the others were advanced, but have no reply."""
        self._metrics.failed_steps.inc()
        failed = set(failure.rows)
        Log(__name__).error("step failed", rows=sorted(failed), exc_info=failure)
        places = zip(tick.leases.tolist(), tick.inputs.rows.tolist(), tick.frame.tolist(), strict=True)
        for lease, row, frame in places:
            if row in failed:
                error = SessionFailedError(f"the model failed at frame {frame}: {failure}")
                self._rows.fail(lease, error)

    def _scatter(self, tick: Tick, outputs: StepOutputs | None, times: TickTimes) -> None:
        """Publish each session's reply, and wake its front end."""
        self._results.end(tick, outputs, times)
        self._record("scatter", times.end_s)
        stage_ms = NO_STAGES if outputs is None else outputs.stage_ms
        self._metrics.stages(stage_ms)
        if self._tracer is not None:
            self._tracer.stages(times.start_s, stage_ms)
            self._tracer.end_tick()
        if self._on_tick is not None:  # last: a front end of this process competes for the interpreter
            self._on_tick()

    def _record(self, stage: str, start_s: float, **details: int) -> None:
        """Add the time of a stage of a tick, which ends now, to the metrics and to the trace."""
        end_s = self._clock()
        self._metrics.stage(stage, end_s - start_s)
        if self._tracer is not None:
            self._tracer.span(stage, start_s, end_s, track=TRACK, **details)


def least_tick_s(configured_s: float, sessions: int) -> float:
    """The minimum seconds between the starts of two ticks with this number of live sessions."""
    return configured_s * min(max(1.0, sessions / FEW_ROWS), LONGEST_REST)

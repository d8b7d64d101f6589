"""The one thread that touches the backend: it sleeps until a session is ready, then runs a tick.

A tick takes every ready session, one frame each, however many more it has waiting (iteration-level batching,
after Orca, Yu et al., OSDI 2022). Sessions that become ready while it runs take part in the next one. The
thread sleeps on a wake-up, with a timeout only while a session waits in the queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from antiphon.backends.base import Backend, HostArray, StepOutputs
from antiphon.engine.admission import Admission
from antiphon.engine.flush_padding import RowAction
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.engine.priming import PrimingQueue
from antiphon.engine.results import Results
from antiphon.engine.resuming import Resuming
from antiphon.engine.rows import Rows
from antiphon.engine.saving import Beside, SavingQueue
from antiphon.engine.sessions import EngineSession
from antiphon.engine.tick import Tick, TickTimes, least_tick_s
from antiphon.engine.trace import Tracer
from antiphon.engine.wake import Wake
from antiphon.errors import SessionFailedError, StepError, UnsupportedError
from antiphon.ipc.arena import Counts
from antiphon.log import Log

TRACK = "engine"


class EngineLoop:
    """Ticks, one after the other. ``tick_once`` alone, called by hand, is the whole engine in slow motion.

    ``settle`` is called with the time before every tick and ends waits that are over; ``on_lost`` is
    called, once, with whatever else than a StepError came out of a tick, or of the wait for one. ``on_tick``
    is called after every tick, when its replies can be taken.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission[EngineSession],
        rows: Rows,
        wake: Wake,
        *,
        is_fixed: bool,
        padding_rows: int,
        least_tick_s: float,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        pressure: LatePressure,
        settle: Callable[[float], None],
        resuming: Resuming,
        on_lost: Callable[[Exception], None],
        on_tick: Callable[[], None] | None,
        tracer: Tracer | None,
    ) -> None:
        """Begin with no sessions; with ``is_fixed`` every tick computes all rows."""
        self._backend = backend
        self._admission = admission
        self._rows = rows
        self._wake = wake
        self._is_fixed = is_fixed
        self._padding_rows = padding_rows
        self._least_tick_s = least_tick_s
        self._clock = clock
        self._metrics = metrics
        self._pressure = pressure
        self._settle = settle
        self._resuming = resuming
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._tracer = tracer
        spec = backend.info.spec
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind.has_deadlines
        self._is_live = spec.kind.is_live
        self._priming = PrimingQueue(backend, rows, metrics)
        self._saving = SavingQueue(backend, rows)
        self._results = Results(rows, spec, metrics)
        self._busy_since_s: float | None = None
        self._began_s = 0.0
        self._has_ticked = False
        self.is_lost = False
        self._is_over = False

    def busy_s(self, now_s: float) -> float:
        """How long the backend has been at work at ``now_s`` (parameters, step), 0 between ticks."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else max(0.0, now_s - since_s)

    def save(self, session: EngineSession, beside: Beside | None = None) -> Future[dict[str, HostArray]]:
        """Ask for the state of a session's row; from any thread. See :meth:`SavingQueue.add`."""
        saved = self._saving.add(session, beside)
        self._wake.nudge()
        if self._is_over:  # meanwhile: this thread would not come to it
            self._saving.fail()
        return saved

    def run(self) -> None:
        """Tick until the wake-up is stopped or the device is lost."""
        try:
            while not self.is_lost and self._sleep():
                while self.tick_once():  # frames that wait need no further wake-up
                    self._rest()
                    if not self._wake.wait(0.0):
                        return
        finally:
            self._end()

    def _end(self) -> None:
        """No tick comes after this one: saves that wait for one fail."""
        self._is_over = True
        self._saving.fail()

    def _rest(self) -> None:
        """Let frames gather after a tick that was very short.

        Live frames come at real time. A recording waits for nothing but its ticks, nor does a prompt.
        """
        if not (self._has_ticked and self._is_live):
            return
        least_s = least_tick_s(self._least_tick_s, self._rows.count)
        left_s = least_s - (self._clock() - self._began_s)
        if left_s > 0:
            time.sleep(min(left_s, least_s))

    def _sleep(self) -> bool:
        """Wait until there may be something to do; false when stopped, or when even that failed."""
        try:
            return self._wake.wait(self._timeout_s())
        except Exception as error:  # nothing above this thread would hear of it
            self._lose(error)
            return False

    def tick_once(self) -> bool:
        """Do what time brought, one tick if any session is ready, and a piece of a prompt if there is one.

        Returns whether there was a tick or a piece.
        """
        try:
            now_s = self._busy_since_s = self._began_s = self._clock()
            self._rows.settle()  # first: admission needs the leases that the last tick still used
            self._resuming.advance()
            self._settle(now_s)
            tick = self._gather(now_s)
            self._has_ticked = tick is not None
            if tick is not None:
                self._tick(tick)
            is_saving = self._saving.advance(now_s)
            return self._prime(now_s) or is_saving or tick is not None
        except Exception as error:  # whatever it was, the model's state cannot be trusted after it
            self._lose(error)
            return False
        finally:
            self._busy_since_s = None

    def _lose(self, error: Exception) -> None:
        self.is_lost = True
        self._end()
        self._on_lost(error)

    def _timeout_s(self) -> float | None:
        now_s = self._clock()
        asked = (self._admission.next_event_s(now_s), self._resuming.next_event_s(now_s))
        events_s = [event_s for event_s in asked if event_s is not None]
        return min(max(0.0, min(events_s) - now_s), threading.TIMEOUT_MAX) if events_s else None

    def _gather(self, now_s: float) -> Tick | None:
        """Everything for the next step, or None when no session is ready."""
        start_s = self._clock()
        self._rows.settle()
        for session in self._rows.unprimed():
            self._priming.add(session)
        leases = self._rows.ready(now_s)
        if not leases.size:
            return None
        if self._care(leases, now_s):
            leases = self._rows.ready(now_s)  # without those whose parameters were refused
            if not leases.size:
                return None
        now_s = self._clock()  # what has come by now was complete before
        tick = self._rows.begin(leases, now_s, is_fixed=self._is_fixed)
        end_s = self._clock()
        self._metrics.stage("gather", end_s - start_s)
        self._trace("gather", start_s, end_s, sessions=len(leases))
        return tick

    def _prime(self, now_s: float) -> bool:
        if not self._priming:
            return False
        start_s = self._clock()
        is_done = self._priming.advance(now_s)
        end_s = self._clock()
        self._metrics.stage("prompt", end_s - start_s)
        self._trace("prompt", start_s, end_s)
        return is_done

    def _care(self, leases: Counts, now_s: float) -> bool:
        """Give rows their new parameters; whether a session ended, since the backend cannot use its own."""
        has_ended = False
        for lease, session in self._rows.cared_for(leases):
            if session.padding.is_busy:
                self._rows.needs_care[lease] = True
            parameters = session.new_parameters()
            if parameters is None:
                continue
            try:
                self._backend.set_parameters(self._rows.row(lease, now_s), parameters)
            except UnsupportedError as error:
                session.end(SessionFailedError(f"the model cannot use these parameters: {error}"))
                has_ended = True
        return has_ended

    def _exchange_state(self, lease: int, action: RowAction) -> None:
        """Keep a row's state before silence that the caller did not send, or put it back after it."""
        padding, row = self._rows.session(lease).padding, self._rows.row(lease, self._clock())
        kept = padding.kept  # read once: a session that closes meanwhile drops it
        if action.puts_back and kept is not None:
            self._backend.restore(row, kept)
            if action is RowAction.RESTORE:
                padding.kept = None
        elif action is RowAction.SAVE:
            others = sum(other.padding.kept is not None for other in self._admission.active())
            if others < self._padding_rows:
                padding.kept = self._backend.snapshot(row)

    def _tick(self, tick: Tick) -> None:
        for lease, action in tick.actions:
            self._exchange_state(lease, action)
        inputs = tick.inputs
        physical = self._backend.plan(inputs.rows, is_fixed=self._is_fixed)
        count = inputs.count
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
        self._trace("step", start_s, end_s, rows=count, physical=physical)
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
                self._rows.session(lease).end(error)

    def _scatter(self, tick: Tick, outputs: StepOutputs | None, times: TickTimes) -> None:
        """Give each session its reply, and wake their front ends."""
        self._results.end(tick, outputs, times)
        end_s = self._clock()
        self._metrics.stage("scatter", end_s - times.end_s)
        self._trace("scatter", times.end_s, end_s)
        if outputs is not None:
            self._metrics.stages(outputs.stage_ms)
            self._trace_stages(outputs, times)
        if self._tracer is not None:
            self._tracer.end_tick()
        if self._on_tick is not None:  # last: who it wakes in this process waits for the interpreter
            self._on_tick()

    def _trace(self, name: str, start_s: float, end_s: float, **details: int) -> None:
        if self._tracer is not None:
            self._tracer.span(name, start_s, end_s, track=TRACK, **details)

    def _trace_stages(self, outputs: StepOutputs, times: TickTimes) -> None:
        """Lay the backend's stages end to end: it reports how long each took, not when it began."""
        if self._tracer is None:
            return
        start_s = times.start_s
        for stage, milliseconds in outputs.stage_ms.items():
            end_s = start_s + milliseconds / 1000.0
            self._tracer.span(stage, start_s, end_s, track="backend")
            start_s = end_s

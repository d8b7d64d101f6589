"""The one thread that touches the backend: it sleeps until a session is ready, then runs a tick.

A tick takes every ready session, one frame each, however many more it has waiting. Who becomes ready
while it runs takes part in the next one. Nothing polls: the thread sleeps on the ready list, with a
timeout only while somebody waits in the queue.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from antiphon.backends.base import Backend, StepOutputs
from antiphon.engine.admission import Admission
from antiphon.engine.aside import Visit
from antiphon.engine.batch import Batch, read_rows
from antiphon.engine.lane import Lane, TickTimes
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.engine.priming import PrimingQueue
from antiphon.engine.ready import ReadyList
from antiphon.engine.session import Session, SessionState
from antiphon.engine.trace import Tracer
from antiphon.errors import SessionFailedError, StepError, UnsupportedError
from antiphon.log import Log
from antiphon.models.spec import PipelineKind

TRACK = "engine"


class EngineLoop:
    """Ticks, one after the other. ``tick_once`` alone, called by hand, is the whole engine in slow motion.

    ``settle`` is called with the time before every tick and ends waits that are over; ``on_lost`` is
    called, once, with whatever else than a StepError came out of a tick, or of the wait for one.
    """

    def __init__(
        self,
        backend: Backend,
        admission: Admission[Session],
        ready: ReadyList[Session],
        *,
        is_fixed: bool,
        aside_rows: int,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        pressure: LatePressure,
        settle: Callable[[float], None],
        on_lost: Callable[[Exception], None],
        tracer: Tracer | None,
    ) -> None:
        """Allocate the batch; with ``is_fixed`` every tick computes all rows."""
        self._backend = backend
        self._admission = admission
        self._ready = ready
        self._is_fixed = is_fixed
        self._aside_rows = aside_rows
        self._clock = clock
        self._metrics = metrics
        self._pressure = pressure
        self._settle = settle
        self._on_lost = on_lost
        self._tracer = tracer
        spec = backend.info.spec
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind is not PipelineKind.TTS
        self._priming = PrimingQueue(backend, metrics)
        self._batch = Batch(backend.info.spec, backend.info.slots)
        self._busy_since_s: float | None = None
        self.is_lost = False

    def busy_s(self, now_s: float) -> float:
        """How long the backend has been at work at ``now_s`` (parameters, step), 0 between ticks."""
        since_s = self._busy_since_s
        return 0.0 if since_s is None else max(0.0, now_s - since_s)

    def run(self) -> None:
        """Tick until the ready list is stopped or the device is lost."""
        while not self.is_lost and self._sleep():
            self.tick_once()

    def _sleep(self) -> bool:
        """Wait until there may be something to do; false when stopped, or when even that failed."""
        try:
            return self._ready.wait(self._timeout_s())
        except Exception as error:  # nobody above this thread would hear of it
            self._lose(error)
            return False

    def tick_once(self) -> bool:
        """Do what time brought, one tick if any session is ready, and a piece of a prompt if there is one.

        Returns whether there was a tick or a piece.
        """
        try:
            now_s = self._busy_since_s = self._clock()
            self._settle(now_s)
            lanes = self._prepare(self._gather())
            if lanes:
                self._tick(lanes)
            return self._prime() or bool(lanes)
        except Exception as error:  # whatever it was, the model's state cannot be trusted after it
            self._lose(error)
            return False
        finally:
            self._busy_since_s = None

    def _lose(self, error: Exception) -> None:
        self.is_lost = True
        self._on_lost(error)

    def _timeout_s(self) -> float | None:
        if self._priming:
            return 0.0
        now_s = self._clock()
        event_s = self._admission.next_event_s(now_s)
        return None if event_s is None else min(max(0.0, event_s - now_s), threading.TIMEOUT_MAX)

    def _gather(self) -> list[Lane]:
        sessions = self._ready.take()
        if not sessions:
            return []
        start_s = self._clock()
        lanes = []
        for session in sessions:
            if session.state is SessionState.PRIMING:
                self._priming.add(session)
            elif (lane := session.begin_tick(self._batch)) is not None:
                lanes.append(lane)
        end_s = self._clock()
        self._metrics.stage("gather", end_s - start_s)
        self._trace("gather", start_s, end_s, sessions=len(lanes))
        return lanes

    def _prime(self) -> bool:
        if not self._priming:
            return False
        start_s = self._clock()
        is_done = self._priming.advance()
        end_s = self._clock()
        self._metrics.stage("prompt", end_s - start_s)
        self._trace("prompt", start_s, end_s)
        return is_done

    def _prepare(self, lanes: list[Lane]) -> list[Lane]:
        """Give rows their new parameters; a session whose parameters the backend cannot use ends."""
        usable = []
        for lane in lanes:
            try:
                if lane.parameters is not None:
                    self._backend.set_parameters(lane.slot.row, lane.parameters)
                if lane.visit not in (Visit.LIVE, Visit.ASIDE):
                    self._exchange_state(lane)
            except UnsupportedError as error:
                lane.session.close(SessionFailedError(f"the model cannot use these parameters: {error}"))
            else:
                usable.append(lane)
        return usable

    def _exchange_state(self, lane: Lane) -> None:
        """Keep a row's state before silence that nobody sent, or put it back after it."""
        session, kept = lane.session, lane.session.kept
        if lane.visit.puts_back and kept is not None:
            self._backend.restore(lane.slot.row, kept)
            if lane.visit is Visit.BACK:
                session.keep(lane.slot, None)
        elif lane.visit is Visit.LEAVE:
            others = sum(other.kept is not None for other in self._admission.active())
            if others < self._aside_rows:
                session.keep(lane.slot, self._backend.snapshot(lane.slot.row))

    def _tick(self, lanes: list[Lane]) -> None:
        rows = [lane.slot.row for lane in lanes]
        is_fresh = [lane.is_fresh for lane in lanes]
        inputs = self._batch.inputs(rows, is_fresh, is_fixed=self._is_fixed)
        physical = self._backend.plan(inputs.rows, is_fixed=self._is_fixed)
        aside = sum(lane.visit.is_aside for lane in lanes)
        self._metrics.frames_taken.inc(len(lanes) - aside)
        self._metrics.aside_frames.inc(aside)
        self._metrics.batch_rows.observe(len(lanes))
        self._metrics.physical_rows.observe(physical)
        start_s = self._clock()
        if self._has_deadlines:
            self._pressure.begin_step(start_s, rows=len(lanes), frame_s=self._frame_s)
        outputs, failure = None, None
        try:
            outputs = self._backend.step(inputs)
        except StepError as error:
            failure = error
        finally:
            self._pressure.end_step()
        end_s = self._clock()
        self._metrics.tick_seconds.observe(end_s - start_s)
        self._trace("step", start_s, end_s, rows=len(lanes), physical=physical)
        if failure is not None:
            self._fail(failure, lanes)
        self._scatter(lanes, outputs, TickTimes(start_s, end_s))

    def _fail(self, failure: StepError, lanes: list[Lane]) -> None:
        """End the sessions of the rows that failed; the others were advanced, but have no reply."""
        self._metrics.failed_steps.inc()
        failed = set(failure.rows)
        Log(__name__).error("step failed", rows=sorted(failed), exc_info=failure)
        for lane in lanes:
            if lane.slot.row in failed:
                lane.session.close(SessionFailedError(f"the model failed at frame {lane.frame}: {failure}"))

    def _scatter(self, lanes: list[Lane], outputs: StepOutputs | None, times: TickTimes) -> None:
        """Give each session its reply, then tell their owners."""
        results = itertools.repeat(None) if outputs is None else read_rows(outputs)
        for lane, output in zip(lanes, results, strict=False):
            lane.session.end_tick(lane, output, times)
        end_s = self._clock()
        for lane in lanes:
            lane.session.tell()
        told_s = self._clock()
        self._metrics.stage("scatter", end_s - times.end_s)
        self._metrics.stage("notify", told_s - end_s)
        self._trace("scatter", times.end_s, end_s)
        self._trace("notify", end_s, told_s)
        if outputs is not None:
            self._metrics.stages(outputs.stage_ms)
            self._trace_stages(outputs, times)
        if self._tracer is not None:
            self._tracer.end_tick()

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

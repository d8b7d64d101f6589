"""The engine's interface: it starts and stops the engine, opens and drains sessions, and reports its health.

The control thread (the thread of the event loop) owns sessions, admission and resumption. The engine thread
owns rows and the backend.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from antiphon.backends.base import Backend, BackendInfo, PageCount, Paged, Progress
from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.engine.admission import EngineLoad
from antiphon.engine.call_state import SavedState
from antiphon.engine.config import EngineConfig
from antiphon.engine.handover import HandOver, HandOverPlan
from antiphon.engine.loop import EngineLoop, Wake
from antiphon.engine.metrics import EngineMetrics, LatePressure
from antiphon.engine.rows import Rows
from antiphon.engine.session_manager import SessionManager
from antiphon.engine.sessions import EngineSession, no_notices
from antiphon.engine.sizing import ALONE, BackendFactory, DeviceShare, make_sized, warm
from antiphon.engine.trace import Tracer
from antiphon.engine.values import EngineLost, SavedRow, SaveRow
from antiphon.errors import (
    AntiphonError,
    ConfigError,
    DrainingError,
    HandOverError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.ipc.health import Health
from antiphon.ipc.memory import RingBytes, ring_bytes
from antiphon.ipc.messages import CallNotice, Sent
from antiphon.ipc.values import Shape
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec

CALL_BYTES: Final = 1 << 20
"""Bytes of one call in addition to its row and its rings, such as notes and names of arrays."""


def _no_progress(done: int, total: int, what: str) -> None:
    """Show nothing."""


SETTLE_S: Final = 0.005
"""Seconds after which further events of the engine thread wait for the next call of :meth:`Engine.settle`:
the end of a session clears its memory, in up to 2 ms, and hundreds may end at once.
"""

FEW_SLOTS: Final = 2
"""If ``slots = auto`` gives at most this number, other load at the start may be the cause."""

FEW_SLOTS_CURE: Final = "if the machine was busy at the start, start again, or give --slots N"


def _page_number(backend: Paged, place: int) -> float:
    count = backend.page_count()
    return 0.0 if count is None else float(count[place])


class Engine:
    """One backend with its rows, and the sessions that have a row or wait for one.

    ``backend`` is a backend, or a function that makes one for a number of rows on the engine thread.
    ``clock`` returns seconds; every time in the engine's interface is read from it. ``on_lost`` is called
    once, on the control thread, when the device is lost and all sessions have ended; ``on_tick`` is called
    after every tick and must return quickly. ``metrics`` belong to one engine. ``share`` is the part of the
    device that a new backend may use when the process has several engines. With ``pools``, callers are in
    that number of other processes (:mod:`antiphon.engine.front_ends`), which wake the engine through an
    ``EventWake``. Other methods may be called after :meth:`start` or :meth:`prepare`, on the control thread,
    which :meth:`controlled_by` sets.
    """

    def __init__(
        self,
        backend: Backend | BackendFactory,
        config: EngineConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        metrics: EngineMetrics,
        on_lost: Callable[[AntiphonError], None] | None = None,
        on_tick: Callable[[], None] | None = None,
        tracer: Tracer | None = None,
        share: DeviceShare = ALONE,
        pools: int | None = None,
        wake: Wake | None = None,
        hand_over: Callable[[BackendInfo], HandOverPlan] | None = None,
    ) -> None:
        """Store the arguments of :meth:`start`; nothing runs yet."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self._source = backend
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._tracer = tracer
        self._share = share
        self._pressure = LatePressure(config)
        self._pools, self._hand_over = pools, hand_over
        self.wake = wake or Wake()
        self._thread: threading.Thread | None = None
        self._is_prepared = False
        self.note = self.assumed = ""  # on the number of rows, for operators
        self._backend: Backend
        self.rows: Rows
        self.sessions: SessionManager
        self.loop: EngineLoop
        self.call_bytes = 0  # bytes of one call sent by another worker
        self.handover: HandOver | None = None

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend, available after the start."""
        return self._backend.info

    def start(self, progress: Progress = _no_progress) -> None:
        """Start the engine thread and wait until the backend is made and warm.

        Raises:
            AntiphonError: the error of making or warming up the backend.
        """
        failures: list[BaseException] = []
        is_prepared = threading.Event()

        def run() -> None:
            try:
                self.prepare(progress)
            except BaseException as error:  # raised on the caller's thread
                failures.append(error)
                return
            finally:
                is_prepared.set()
            self.loop.run()
            if not self.loop.is_lost:  # releasing memory of a lost device may hang
                self._backend.close()

        self._thread = threading.Thread(target=run, name="antiphon-engine", daemon=True)
        self._thread.start()
        is_prepared.wait()
        if failures:
            self._thread.join()
            raise failures[0]

    def prepare(self, progress: Progress = _no_progress) -> None:
        """Make and warm the backend on this thread; the ticks of :attr:`loop` can then be run."""
        backend = self._backend = self._warm_backend(progress)
        info = backend.info
        self.rows = Rows(info.spec, self.config, info.slots, metrics=self.metrics, pools=self._pools)
        self.sessions = SessionManager(
            self.rows,
            self.config,
            info.slots,
            pressure=self._pressure,
            metrics=self.metrics,
            clock=self.clock,
            nudge=self.wake.nudge,
            pools=self._pools or 1,
            shortage=self._shortage,
            note=self.note,
        )
        self.loop = EngineLoop(
            backend,
            self.rows,
            self.wake,
            is_fixed=self.config.fixed_batch,
            padding_rows=self.config.padding_rows,
            least_tick_s=self.config.least_tick_ms / 1000.0,
            clock=self.clock,
            metrics=self.metrics,
            pressure=self._pressure,
            notify=self.settle,
            on_tick=self._on_tick,
            tracer=self._tracer,
        )
        self._add_gauges(backend)
        block = self.rows.arena.shape.block.itemsize
        row_bytes = info.memory.get("whole_row", backend.state_bytes() // info.slots)
        self.call_bytes = row_bytes + block + CALL_BYTES
        if self._hand_over is not None:
            self.handover = HandOver(
                self._hand_over(info),
                self.sessions,
                info,
                clock=self.clock,
                metrics=self.metrics,
                do=self._do,
            )
        self._is_prepared = True

    def _add_gauges(self, backend: Backend) -> None:
        """Update the gauges for a scrape; on the engine thread, which asks the backend."""

        def load_of(name: str) -> Callable[[], float]:
            return lambda: float(getattr(self.sessions.load(self.clock()), name))

        state_bytes, rows = backend.state_bytes(), self.rows
        if isinstance(backend, Paged) and backend.page_count() is not None:
            for name, place in (("ring_pages_free", 0), ("ring_pages", 1)):
                self.metrics.gauge(name, partial(_page_number, backend, place))
        self.metrics.facts(backend.info)
        for name, read in (
            ("active_sessions", load_of("active")),
            ("queued_sessions", load_of("queued")),
            ("slots", load_of("slots")),
            ("detached_sessions", lambda: float(self.sessions.resuming.detached)),
            ("admitting", load_of("is_admitting")),
            ("input_queue_frames", rows.waiting_frames),
            ("output_queue_frames", rows.waiting_replies),
            ("state_bytes", lambda: state_bytes),
        ):
            self.metrics.gauge(name, read)

    def _shortage(self, session: EngineSession | None) -> str:
        """Why a new caller could force another session to end; empty if it cannot, as without overcommit.

        The caller needs the pages of its prompt or state, or one page. The other sessions may need the pages
        that they still read, or one page each within their next 64 frames.
        """
        count = self._backend.page_count() if isinstance(self._backend, Paged) else None
        if count is None:
            return ""
        most, promised = self._pages(count)
        wanted = 1 if session is None else min(session.pages, most)
        if count.free >= promised + wanted:
            return ""
        return (
            f"only {count.free} of {count.pages} pages of keys and values are free; {promised} are promised "
            f"to sessions, and this one needs {wanted} (overcommit)"
        )

    def _pages(self, count: PageCount) -> tuple[int, int]:
        """The most pages of a row, and the pages promised to sessions."""
        lm = self.info.spec.lm
        most = count.pages if lm is None else -(-lm.context // PAGE_SLOTS)
        return most, self.sessions.promised_pages(most)

    def _free_rows(self, load: EngineLoad) -> int:
        """Rows available to new callers now."""
        count = self._backend.page_count() if isinstance(self._backend, Paged) else None
        free = load.slots - load.active
        return free if count is None else max(0, min(free, count.free - self._pages(count)[1]))

    def controlled_by(self, notify: Callable[[], None]) -> None:
        """Set ``notify``, which makes the control thread call :meth:`settle`; any thread may call it.

        Without it the engine thread calls :meth:`settle`.
        """
        self.loop.notify = notify

    def settle(self) -> None:
        """Handle events of the engine thread and expired timeouts; called on the control thread.

        Events that are left after ``SETTLE_S`` are handled in another call.
        """
        events, began_s = self.rows.events, self.clock()
        while events and self.clock() < began_s + SETTLE_S:
            event = events.popleft()
            self.sessions.handle(event)
            if isinstance(event, EngineLost):
                self._lose(event.error)
        if events:
            self.loop.notify()
        self.sessions.settle(self.clock())
        self.plan()

    def plan(self) -> None:
        """Continue pending transfers, and schedule the next :meth:`settle`."""
        due_s = self.sessions.next_event_s(self.clock())
        if self.handover is not None:
            self.handover.settle()
            due_s = min(due_s, self.handover.next_event_s())
        is_sooner, self.loop.due_s = due_s < self.loop.due_s, due_s
        if is_sooner:
            self.wake.nudge()

    def _do(self, work: Callable[[], None]) -> None:
        """Schedule a function on the control thread; thread-safe."""
        self.rows.events.append(work)
        self.loop.notify()

    def _warm_backend(self, progress: Progress) -> Backend:
        source = self._source
        if callable(source):
            sized = make_sized(source, self.config, self.clock, self._share, self.rings_of)
            backend, self.assumed = sized.backend, sized.assumed
        else:
            backend = source
        chosen = backend.info.slots
        if self.config.slots not in (None, chosen):
            raise ConfigError(f"slots is {self.config.slots}, but the backend was made with {chosen}")
        if not callable(source):
            backend.warm_up(progress)
            return backend
        backend = warm(backend, source, self.config, progress)
        slots = backend.info.slots
        if slots < chosen:
            self.note = f"slots = auto chose {slots}: memory ran out while {chosen} rows were warmed up"
        elif self.config.slots is None and slots <= FEW_SLOTS:
            self.note = f"slots = auto chose {slots}; {FEW_SLOTS_CURE}"
        return backend

    def rings_of(self, spec: ModelSpec) -> RingBytes:
        """Host memory that the calls of a model need, without the memory of the backend."""
        config = self.config
        shape = Shape.of(spec, input_frames=config.input_frames, output_frames=config.output_frames)
        return ring_bytes(shape, self._pools)

    def session(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        send: Callable[[CallNotice], None] = no_notices,
        pool: int | None = None,
        prompt: Prompt | SavedState | None = None,
    ) -> EngineSession:
        """Make the engine's half of a session, for :class:`SessionManager` to admit.

        Raises:
            UnsupportedError: a prompt is given, and the backend does not support prompts.
        """
        if isinstance(prompt, Prompt) and not self.info.can_prime:
            raise UnsupportedError(f"the {self.info.name} backend takes no prompt for {self.info.spec.name}")
        samples = self.info.spec.frame_samples
        return EngineSession(session_id, parameters, samples, send=send, pool=pool, prompt=prompt)

    def save(self, session: EngineSession) -> Future[SavedRow]:
        """Save the state of a session's row; the row takes no step until the future is done.

        The future raises SessionError if the session has no row, or if the engine ends first.
        """
        save = SaveRow(session.lease)
        self.sessions.post(save)
        if self.loop.is_over:  # the engine thread has ended and saves nothing
            self.loop.end_saves()
        return save.result

    def take_call(self, read: Callable[[], bytes]) -> Future[None]:
        """Accept a call from another worker; see :meth:`HandOver.take`."""
        if self.handover is None:
            taken: Future[None] = Future()
            taken.set_exception(HandOverError("calls are not accepted here: there is no hand_over_secret"))
            return taken
        return self.handover.take(read)

    def record_sent(self, sent: Sent) -> None:
        """Count the replies that a front end has written to sockets, in the metrics and in late pressure."""
        if frames := sent.latency_s.size:
            self.metrics.frame_latency_seconds.observe_many(sent.latency_s)
            sent_s = min(sent.sent_s, self.clock())
            self._pressure.record_many(sent_s, frames=frames, late=sent.pressing)
        if sent.first_audio_s.size:
            self.metrics.first_audio_seconds.observe_many(sent.first_audio_s)
        self.metrics.late_frames.inc(sent.late)
        self.metrics.dropped_in.inc(sent.refused)

    def note_host(self, host: str, lag_s: float) -> None:
        """Report to admission the event loop's lag in a process that feeds this engine."""
        self._pressure.note_host(self.clock(), host, lag_s)

    def drain(self, target: str = "") -> None:
        """Stop admission; waiting callers get a DrainingError, active ones continue.

        If ``target`` is the address of another worker, resumable calls move there; until a call has moved, it
        can be resumed here.
        """
        handover = self.handover if target else None
        if handover is not None:
            handover.begin(target)
        self.sessions.drain(keeps_detached=handover is not None)
        self.plan()

    def stop(self, timeout_s: float) -> bool:
        """End all sessions and the engine thread; returns false if a step is still running after
        ``timeout_s``.

        No effect on an engine that was never started.
        """
        if not self._is_prepared:
            return True
        if self.handover is not None:
            self.handover.stop()
        self.drain()
        self.sessions.end_all(DrainingError("the server is shutting down; its sessions are closed"))
        self.wake.stop()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def health(self) -> Health:
        """The engine's health at this moment."""
        now_s = self.clock()
        load, lost = self.sessions.load(now_s), self.sessions.lost
        busy_s = self.loop.busy_s(now_s)
        stuck_s = busy_s if busy_s > self.config.stuck_s else 0.0
        alive = lost is None and (self._thread is None or self._thread.is_alive())
        if lost is not None:
            detail = str(lost)
        elif not alive:
            detail = "the engine thread is not running"
        elif stuck_s:
            detail = f"a step has been running for {stuck_s:.1f} s, more than {self.config.stuck_s:g} s"
        else:
            detail = self.note or "ok"
        is_ready = alive and not stuck_s and load.is_admitting
        free = self._free_rows(load) if is_ready else 0
        return Health(
            alive, stuck_s, is_ready, load.is_draining, load.active, load.queued, load.slots, free, detail
        )

    def _lose(self, error: Exception) -> None:
        """End all sessions, once, because the device or code of this server has failed."""
        lost = SessionFailedError(f"the model can no longer run: {type(error).__name__}: {error}")
        Log(__name__).error("device lost", reason=str(error), exc_info=error)
        self.sessions.lose(lost)
        if self._on_lost is None:
            return
        try:
            self._on_lost(lost)
        except Exception as failure:  # the caller's code, at the top of a thread
            Log(__name__).error("on_lost failed", exc_info=failure)

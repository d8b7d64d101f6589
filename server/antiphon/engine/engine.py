"""The engine as its callers see it: start, submit, drain, stop, health."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from antiphon.backends.base import Backend, BackendInfo, HostArray, Progress
from antiphon.engine.admission import Admission
from antiphon.engine.config import EngineConfig
from antiphon.engine.deliveries import LatencyMetrics
from antiphon.engine.gauges import add_gauges
from antiphon.engine.handing_over import HandingOver, HandOverPlan
from antiphon.engine.loop import EngineLoop
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.pressure import LatePressure
from antiphon.engine.resuming import Resuming
from antiphon.engine.row_state import SavedState
from antiphon.engine.rows import Rows
from antiphon.engine.saving import Beside
from antiphon.engine.session_manager import SessionManager
from antiphon.engine.sessions import EngineSession
from antiphon.engine.sizing import ALONE, BackendFactory, DeviceShare, make_sized
from antiphon.engine.trace import Tracer
from antiphon.engine.wake import Wake
from antiphon.errors import (
    AntiphonError,
    ConfigError,
    DrainingError,
    HandOverError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.ipc.arena import Shape
from antiphon.ipc.health import Health
from antiphon.ipc.memory import RingBytes, ring_bytes
from antiphon.ipc.messages import CallNotice
from antiphon.log import Log
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec

CALL_BYTES: Final = 1 << 20
"""What one call has beside its row and its rings: notes, names of arrays."""


def _no_progress(done: int, total: int, what: str) -> None:
    """Show nothing."""


FEW_SLOTS: Final = 2
"""Rows of slots = auto that may come from a start beside other load."""

FEW_SLOTS_CURE: Final = "if the machine was busy at the start, start again, or give --slots N"


class Engine:
    """One backend, its rows, and everybody who wants one.

    ``backend`` is a backend, or makes one with as many rows as it is asked for; in that case it is made
    on the engine thread. ``clock`` gives seconds and is the clock of every time in the engine's
    interface. ``on_lost`` is called once, on the engine thread, when the device is lost, after all
    sessions have ended; ``on_tick`` after every tick, and it must be cheap. ``metrics`` belong to one
    engine. ``share`` is what other engines of the process leave of the device to a backend that is made.
    With ``pools`` so many other processes have callers (:mod:`antiphon.engine.front_ends`); they raise an
    ``EventWake``. Everything but :meth:`start` needs an engine that was started (or prepared, to be ticked
    by hand).
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
        """Keep what :meth:`start` will need; nothing runs yet."""
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self._source = backend
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._tracer = tracer
        self._share = share
        self._pressure = LatePressure(config)
        self.deliveries = LatencyMetrics(metrics, self._pressure)
        self._pools, self._hand_over = pools, hand_over
        self.wake = wake or Wake()
        self._thread: threading.Thread | None = None
        self._is_prepared = False
        self.note = ""  # on the number of rows, for operators
        self._backend: Backend
        self.rows: Rows
        self.sessions: SessionManager
        self.resuming: Resuming
        self.loop: EngineLoop
        self.call_bytes = 0  # of one call, as another worker sends it
        self.handing_over: HandingOver | None = None

    @property
    def info(self) -> BackendInfo:
        """Facts about the backend; known once the engine was started."""
        return self._backend.info

    def start(self, progress: Progress = _no_progress) -> None:
        """Start the engine thread and wait until the backend is made and warm.

        Raises:
            AntiphonError: whatever making the backend or its warm-up raised.
        """
        failures: list[BaseException] = []
        is_prepared = threading.Event()

        def run() -> None:
            try:
                self.prepare(progress)
            except BaseException as error:  # carried over to the caller's thread, raised there
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
        """Make and warm the backend on the calling thread; :attr:`loop` may then be ticked by hand."""
        backend = self._backend = self._warm_backend(progress)
        info = backend.info
        self.rows = Rows(
            info.spec,
            self.config,
            info.slots,
            metrics=self.metrics,
            pressure=self._pressure,
            pools=self._pools,
        )
        leases = self.rows.leases
        admission: Admission[EngineSession] = Admission(
            info.slots,
            self.config,
            self._pressure,
            activate=EngineSession.activate,
            has_lease=lambda it: leases.has_free(None if it is None else it.pool or 0),
            note=self.note,
        )
        self.resuming = Resuming(
            self.rows,
            window_s=self.config.resume_window_s,
            yield_s=self.config.resume_yield_s,
            clock=self.clock,
            nudge=self.wake.nudge,
            swap=admission.swap,
            resumed=lambda: self.metrics.resumption("resumed"),
        )
        self.sessions = SessionManager(
            admission, self.resuming, clock=self.clock, metrics=self.metrics, nudge=self.wake.nudge
        )
        self.loop = EngineLoop(
            backend,
            admission,
            self.rows,
            self.wake,
            is_fixed=self.config.fixed_batch,
            padding_rows=self.config.padding_rows,
            least_tick_s=self.config.least_tick_ms / 1000.0,
            clock=self.clock,
            metrics=self.metrics,
            pressure=self._pressure,
            settle=self.sessions.settle,
            resuming=self.resuming,
            on_lost=self._lose,
            on_tick=self._on_tick,
            tracer=self._tracer,
        )
        add_gauges(self.metrics, backend, self.rows, self.resuming, lambda: self.sessions.load(self.clock()))
        self.call_bytes = (
            backend.state_bytes() // info.slots + self.rows.arena.shape.block.itemsize + CALL_BYTES
        )
        self.handing_over = None
        if self._hand_over is not None:
            self.handing_over = HandingOver(self, self._hand_over(info))
        self._is_prepared = True

    def _warm_backend(self, progress: Progress) -> Backend:
        source = self._source
        backend = (
            make_sized(source, self.config, self.clock, self._share, self.rings_of)
            if callable(source)
            else source
        )
        slots = backend.info.slots
        if self.config.slots not in (None, slots):
            raise ConfigError(f"slots is {self.config.slots}, but the backend was made with {slots}")
        if callable(source) and self.config.slots is None and slots <= FEW_SLOTS:
            self.note = f"slots = auto chose {slots}; {FEW_SLOTS_CURE}"
        backend.warm_up(progress)
        return backend

    def rings_of(self, spec: ModelSpec) -> RingBytes:
        """What calls of a model take of the machine's memory, beside the backend's."""
        config = self.config
        shape = Shape.of(spec, input_frames=config.input_frames, output_frames=config.output_frames)
        return ring_bytes(shape, self._pools)

    def session(
        self,
        session_id: str,
        parameters: SamplingParameters,
        *,
        send: Callable[[CallNotice], None],
        pool: int | None = None,
        prompt: Prompt | SavedState | None = None,
    ) -> EngineSession:
        """The engine's half of a session, for :class:`SessionManager`; see :class:`EngineSession`.

        Raises:
            UnsupportedError: a prompt for a backend that takes none.
        """
        if isinstance(prompt, Prompt) and not self.info.can_prime:
            raise UnsupportedError(f"the {self.info.name} backend takes no prompt for {self.info.spec.name}")
        return EngineSession(
            *(session_id, parameters),
            rows=self.rows.marks,
            wake=self.wake,
            host=self.sessions.host,
            send=send,
            pool=pool,
            prompt=prompt,
        )

    def save(self, session: EngineSession, beside: Beside | None = None) -> Future[dict[str, HostArray]]:
        """The state of a session's row; see :meth:`antiphon.engine.saving.SavingQueue.add`.

        The future raises SessionError where the session has no row.
        """
        return self.loop.save(session, beside)

    def take_call(self, read: Callable[[], bytes]) -> Future[None]:
        """Take a call of another worker; see :meth:`HandingOver.take`."""
        if self.handing_over is None:
            taken: Future[None] = Future()
            taken.set_exception(HandOverError("no calls are taken here: there is no hand_over_secret"))
            return taken
        return self.handing_over.take(read)

    def note_host(self, host: str, lag_s: float) -> None:
        """Tell admission how late the event loop of a process that feeds this engine runs."""
        self._pressure.note_host(self.clock(), host, lag_s)

    def check_room(self, wait_s: float) -> None:
        """Whether a caller would be taken now; raises as :meth:`SessionManager.check_room`."""
        self.sessions.check_room(wait_s)

    def drain(self, target: str = "") -> None:
        """Admit no further caller; waiting ones get a DrainingError, active ones go on.

        With the address of another worker as ``target``, calls that can be resumed go there; until they have,
        they are resumed here.
        """
        handing_over = self.handing_over if target else None
        if handing_over is not None:
            handing_over.begin(target)
        self.sessions.drain(keeps_detached=handing_over is not None)

    def stop(self, timeout_s: float) -> bool:
        """End all sessions and the engine thread; false when a step still ran after ``timeout_s``.

        Does nothing to an engine that never came to life.
        """
        if not self._is_prepared:
            return True
        if self.handing_over is not None:
            self.handing_over.stop()
        self.drain()
        self.sessions.end_all(DrainingError("the server is leaving; its sessions are closed"))
        self.wake.stop()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def health(self) -> Health:
        """How the engine is now."""
        now_s = self.clock()
        load, lost = self.sessions.load(now_s), self.sessions.lost
        busy_s = self.loop.busy_s(now_s)
        stuck_s = busy_s if busy_s > self.config.stuck_s else 0.0
        alive = lost is None and (self._thread is None or self._thread.is_alive())
        if lost is not None:
            detail = str(lost)
        elif not alive:
            detail = "the engine thread does not run"
        elif stuck_s:
            detail = f"a step has been running for {stuck_s:.1f} s, more than {self.config.stuck_s:g} s"
        else:
            detail = self.note or "ok"
        is_ready = alive and not stuck_s and load.is_admitting
        return Health(
            alive, stuck_s, is_ready, load.is_draining, load.active, load.queued, load.slots, detail
        )

    def _lose(self, error: Exception) -> None:
        """The device, or our own code, has failed: end everything, once."""
        lost = SessionFailedError(f"the model can no longer run: {type(error).__name__}: {error}")
        Log(__name__).error("device lost", reason=str(error), exc_info=error)
        self.sessions.lose(lost)
        if self._on_lost is None:
            return
        try:
            self._on_lost(lost)
        except Exception as failure:  # the caller's code, on a thread without a caller above it
            Log(__name__).error("on_lost failed", exc_info=failure)

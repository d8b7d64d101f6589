"""Computes the number of rows that a machine can serve, from its memory, constants of known GPUs, and
measured ticks.

Memory limits how many rows exist. Time limits how many rows can be answered within a frame. The errors state
both limits, in bytes and milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from antiphon.backends.base import Backend, BackendInfo, Progress, Resizable
from antiphon.backends.machine import host_bytes
from antiphon.backends.stopwatch import StepClock
from antiphon.engine.config import EngineConfig
from antiphon.engine.tick_times import (
    HostLoad,
    TickRule,
    age,
    calls_in_time,
    measure_tick,
    next_rows,
    tick_limit_s,
)
from antiphon.errors import BackendError, ConfigError
from antiphon.ipc.memory import RingBytes
from antiphon.log import Log
from antiphon.models.costs import GpuCard, TickWork, card_called, rows_computed
from antiphon.models.spec import ModelSpec, PipelineKind


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory in bytes: the device's total, the weights, and each row including its part of a tick.

    Other models use ``taken_bytes`` of the total. ``cache_bytes`` is the limit on kept prompts and voices.
    ``spare_bytes`` of rings are allocated for any number of rows; a row's rings are part of ``row_bytes``.
    """

    total_bytes: int
    weights_bytes: int
    row_bytes: int
    taken_bytes: int = 0
    cache_bytes: int = 0
    spare_bytes: int = 0

    @property
    def fixed_bytes(self) -> int:
        """Bytes that are needed even without rows: weights, caches and spare rings."""
        return self.weights_bytes + self.cache_bytes + self.spare_bytes

    @property
    def fixed_words(self) -> str:
        """The parts of :attr:`fixed_bytes` as text, for messages."""
        caches = f" + caches {self.cache_bytes:,} bytes" if self.cache_bytes else ""
        spare = f" + spare rings {self.spare_bytes:,} bytes" if self.spare_bytes else ""
        return f"weights {self.weights_bytes:,} bytes{caches}{spare}"

    @property
    def left_bytes(self) -> int:
        """Bytes that other models have not taken."""
        return max(0, self.total_bytes - self.taken_bytes)

    @property
    def taken_words(self) -> str:
        """A note about other models, if there are any."""
        return (
            f" ({self.taken_bytes:,} of {self.total_bytes:,} belong to other models)"
            if self.taken_bytes
            else ""
        )

    def needed(self, rows: int) -> int:
        """Bytes for the weights, the caches and ``rows`` rows."""
        return self.fixed_bytes + rows * self.row_bytes


def check_fit(memory: MemoryFacts, rows: int) -> None:
    """Check that ``rows`` rows fit.

    Raises:
        ConfigError: the rows do not fit; the message has all the bytes and the number of rows that would fit.
    """
    if memory.needed(rows) <= memory.left_bytes:
        return
    left = memory.left_bytes - memory.fixed_bytes
    fitting = max(0, left // memory.row_bytes) if memory.row_bytes else 0
    raise ConfigError(
        f"{rows} rows do not fit: {memory.fixed_words} + {rows} x {memory.row_bytes:,} "
        f"bytes = {memory.needed(rows):,} bytes, but there are {memory.left_bytes:,}{memory.taken_words}; "
        f"{fitting} rows would fit"
    )


def rows_that_fit(
    memory: MemoryFacts, *, reserve_fraction: float, at_most: int, models_waiting: int = 1
) -> int:
    """Maximum number of rows, up to ``at_most``, that leave ``reserve_fraction`` of all memory unused.

    If ``models_waiting`` models are still to be made on this device, including this one, each gets an equal
    part of the rest.

    Raises:
        ConfigError: not even one row fits.
    """
    usable = max(0, int(memory.total_bytes * (1 - reserve_fraction)) - memory.taken_bytes) // models_waiting
    if memory.needed(1) > usable:
        shared = f", a part of {models_waiting}" if models_waiting > 1 else ""
        raise ConfigError(
            f"not even one row fits: {memory.fixed_words} + one row "
            f"{memory.row_bytes:,} bytes = {memory.needed(1):,} bytes, but only {usable:,} of "
            f"{memory.total_bytes:,} may be used{shared}{memory.taken_words}"
        )
    if memory.row_bytes == 0:
        return at_most
    return min(at_most, (usable - memory.fixed_bytes) // memory.row_bytes)


def most_rows(facts: MemoryFacts) -> int:
    """The number of rows that ``--slots auto`` gives by memory; 0 if not even one row fits."""
    config = EngineConfig()
    try:
        return rows_that_fit(facts, reserve_fraction=config.memory_reserve_fraction, at_most=config.max_slots)
    except ConfigError:
        return 0


@dataclass(frozen=True, slots=True)
class ComputedSlots:
    """The number of slots that can be answered in time; ``ready_rows`` of them are in one tick, which takes
    ``tick_ms``.

    ``slots`` is 0, and ``ready_rows`` is 1, if a tick of one row takes more than ``limit_ms``.
    """

    slots: int
    ready_rows: int
    tick_ms: float
    limit_ms: float
    card: GpuCard


def computed_slots(info: BackendInfo, config: EngineConfig, models: int = 1) -> ComputedSlots | None:
    """The number of slots on a GPU; None if its constants, or the cost of a tick, are unknown."""
    card = card_called(info.device_name)
    if card is None or not info.work:
        return None
    return slots_on(card, TickWork(**info.work), info.spec.kind, info.spec.frame_ms, config, models)


def slots_on(
    card: GpuCard, work: TickWork, kind: PipelineKind, frame_ms: float, config: EngineConfig, models: int = 1
) -> ComputedSlots:
    """The number of slots from a GPU's constants and the cost of a tick, for rows at full context.

    In a tts model all rows are ready in every tick, and a tick may take a whole frame, less the reserve. For
    other models two ticks must fit into a frame, and there can be more calls than ready rows
    (:func:`calls_in_time`).
    """
    reserve, is_spoken = config.tick_reserve_fraction, not kind.has_deadlines
    limit_s = tick_limit_s(frame_ms / 1000, reserve_fraction=reserve, models=models)
    limit_ms = 1000 * limit_s * (2 if is_spoken else 1)
    rows = rows_computed(work, card, limit_ms, config.max_slots)
    slots = rows if is_spoken or config.fixed_batch else calls_in_time(rows, reserve_fraction=reserve)
    tick_ms = work.tick_ms(rows, card)
    slots = min(slots, config.max_slots) if tick_ms <= limit_ms else 0
    return ComputedSlots(slots, rows, tick_ms, limit_ms, card)


BackendFactory: TypeAlias = Callable[[int], Backend]
"""Makes a backend with a number of rows."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A model's share of a device that several models of a process use.

    ``taken_bytes`` is the memory that earlier models took, by device. ``models`` is the number of models on
    the device; ``models_waiting`` of them, including this one, are not made yet. ``load`` is the share of the
    host's cores that calls take.
    """

    taken_bytes: Mapping[str, int] = field(default_factory=dict)
    models: int = 1
    models_waiting: int = 1
    load: HostLoad = field(default_factory=HostLoad)


ALONE = DeviceShare()

Rings: TypeAlias = Callable[[ModelSpec], RingBytes]
"""Host memory that the calls of a model take."""


CHOOSING_ROWS = 16
"""Maximum number of rows with which a backend chooses how it uses threads; more rows would take longer."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A backend, and the assumptions behind its number of rows as text; "" if ticks did not determine the
    number.
    """

    backend: Backend
    assumed: str = ""


def make_sized(
    factory: BackendFactory,
    config: EngineConfig,
    clock: Callable[[], float],
    share: DeviceShare = ALONE,
    rings: Rings = lambda _spec: RingBytes(0, 0),
) -> Sized:
    """Make a backend, not yet warm, with ``config.slots`` rows or, if that is None, as many rows as it can
    answer in time.

    In the second case the backend first chooses how it uses threads. It is then timed with more and more
    ready rows, as far as memory allows; where possible it is resized, otherwise made again. If its ticks
    always compute all rows (:meth:`Backend.plan`), the number of rows is increased until it is too slow. For
    other backends the ready rows of a tick are timed; there can be more calls than ready rows. On a GPU with
    known constants the backend is first resized to the computed number. A tts model cannot be timed without a
    text: its number of rows follows from memory, the computation, and the time per row that the backend
    reports. ``rings`` is the host memory of calls, in addition to the model's memory on its device.

    Raises:
        ConfigError: the rows do not fit into memory, or no known value can determine their number.
        BackendError: memory ran out nevertheless.
    """
    backend = _make(factory, 1)  # the memory of a row is known from one, before many are made
    found = memory_facts(backend.info, share)
    facts = with_rings(found, backend.info, rings(backend.info.spec), share)
    if config.slots is not None:
        return Sized(_make_fixed(backend, factory, config.slots, facts))
    if found is None:
        backend.close()
        raise ConfigError(
            f"backend {backend.info.name} does not report the memory of a row; give a number of slots"
        )
    fitting = min(
        rows_that_fit(
            each,
            reserve_fraction=config.memory_reserve_fraction,
            at_most=config.max_slots,
            models_waiting=share.models_waiting,
        )
        for each in facts
    )
    info = backend.info
    expected = _expected(info, config, share, fitting)
    frame_s, reserve = info.spec.frame_ms / 1000.0, config.tick_reserve_fraction
    rule = TickRule(
        frame_s, reserve, share.load, info.cpu_threads, share.models, splits_rows=info.splits_rows
    )
    if not info.spec.kind.has_deadlines:
        spoken = _spoken_in_time(backend.info, config, rule)
        words = "" if backend.info.row_ms is None else rule.words
        return Sized(_remake(backend, factory, min(fitting, expected or fitting, spoken)), words)
    backend = _with_threads_chosen(backend, factory, min(fitting, CHOOSING_ROWS))
    timed = _timed(backend, factory, config, StepClock(clock), rule, fitting, first=expected or 0)
    return Sized(timed, rule.words)


def _timed(
    backend: Backend,
    factory: BackendFactory,
    config: EngineConfig,
    clock: StepClock,
    rule: TickRule,
    fitting: int,
    *,
    first: int,
) -> Backend:
    """Resize the backend from one row to the most calls that it answers by ``rule``, at most ``fitting``.

    It is timed with one row, and with increasing numbers of ready rows until it is too slow with the
    slowdown of one call. It is resized to at least ``first`` rows and then, if a tick computes only the ready
    rows, to ``fitting``; otherwise to each number of rows that is timed.
    """
    age(backend)
    ticks, is_packed = [measure_tick(backend, 1, clock, 1)], False
    limit_s = rule.limit_s / rule.slowdown(1)
    while ticks[-1].seconds <= limit_s and ticks[-1].rows < fitting:
        slots = backend.info.slots
        rows = min(next_rows(ticks, limit_s), slots if ticks[-1].rows < slots else fitting)
        if rows > slots:
            backend = _remake(backend, factory, fitting if is_packed else min(max(first, rows), fitting))
            is_packed = not config.fixed_batch and backend.plan(np.zeros(1, np.int32)) < backend.info.slots
            age(backend)
        rows = rows if is_packed else backend.info.slots
        calls = calls_in_time(rows, reserve_fraction=config.tick_reserve_fraction)
        ticks.append(measure_tick(backend, rows, clock, calls))
    slots = replace(rule, is_packed=is_packed).calls(ticks, fitting)
    Log(__name__).debug(
        "slots chosen",
        slots=slots,
        by_memory=fitting,
        tick_limit_ms=1000 * rule.limit_s,
        slowdown=rule.slowdown(slots),
        ticks_ms=" ".join(f"{tick.rows}:{1000 * tick.seconds:.3g}" for tick in ticks),
    )
    return _remake(backend, factory, slots)


def warm(backend: Backend, factory: BackendFactory, config: EngineConfig, progress: Progress) -> Backend:
    """Warm up the backend. With ``slots = auto`` it loses an eighth of its rows each time that memory runs
    out.

    The number of rows follows from the bytes of their state; the additional memory of ticks is known only
    when they are captured.

    Raises:
        BackendError: memory ran out with a configured number of slots, or with a single one.
    """
    while True:
        rows = backend.info.slots
        try:
            backend.warm_up(progress)
        except MemoryError as error:
            reason = str(error)
        else:
            return backend
        if config.slots is not None or rows == 1:
            raise BackendError(f"memory ran out while {rows} rows were warmed up; give fewer slots: {reason}")
        fewer = rows - max(1, rows // 8)
        Log(__name__).warning("memory ran out in warm-up", rows=rows, next_rows=fewer, reason=reason)
        backend = _remake(backend, factory, fewer)


def _expected(info: BackendInfo, config: EngineConfig, share: DeviceShare, fitting: int) -> int | None:
    """The slots computed for a GPU with known constants, limited by its memory; at least 1."""
    computed = computed_slots(info, config, share.models)
    if computed is None:
        return None
    slots = min(max(1, computed.slots), fitting)
    Log(__name__).debug(
        "slots computed",
        slots=slots,
        by_memory=fitting,
        by_time=computed.slots,
        ready_rows=computed.ready_rows,
        tick_ms=computed.tick_ms,
        card=computed.card.name,
        constants=computed.card.label,
    )
    return slots


def _spoken_in_time(info: BackendInfo, config: EngineConfig, rule: TickRule) -> int:
    """Maximum number of rows that can all be synthesised at the speed of listening, from the time of
    one row.
    """
    if (row_ms := info.row_ms) is None:
        return config.max_slots
    limit_ms = info.spec.frame_ms * (1 - config.tick_reserve_fraction)
    counts = range(config.max_slots, 1, -1)
    rows = next((rows for rows in counts if rows * row_ms * rule.slowdown(rows) <= limit_ms), 1)
    Log(__name__).debug("slots by time", slots=rows, row_ms=row_ms, tick_limit_ms=limit_ms)
    return rows


def _with_threads_chosen(backend: Backend, factory: BackendFactory, rows: int) -> Backend:
    """The backend with one row, otherwise as it will run; a choice of threads outlasts resizing."""
    if not isinstance(backend, Resizable) or not backend.info.chooses_threads:
        return backend
    _remake(backend, factory, rows)
    backend.choose_threads()
    return _remake(backend, factory, 1)


def _make_fixed(
    backend: Backend, factory: BackendFactory, rows: int, facts: Sequence[MemoryFacts]
) -> Backend:
    try:
        for each in facts:
            check_fit(each, rows)
    except ConfigError:
        backend.close()
        raise
    return _remake(backend, factory, rows)


def _remake(backend: Backend, factory: BackendFactory, rows: int) -> Backend:
    """The backend with ``rows`` rows: resized where possible, so that weights are loaded once."""
    if backend.info.slots == rows:
        return backend
    if isinstance(backend, Resizable):
        with _telling(rows):
            backend.resize(rows)
        return backend
    backend.close()
    return _make(factory, rows)


def _make(factory: BackendFactory, rows: int) -> Backend:
    with _telling(rows):
        return factory(rows)


@contextmanager
def _telling(rows: int) -> Iterator[None]:
    """Turn a RuntimeError of torch about memory into an error of our own."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise BackendError(f"a backend with {rows} rows could not be made: {error}") from error


def bytes_taken(info: BackendInfo) -> int:
    """The device memory in bytes that a backend reports to use."""
    memory = info.memory
    row = memory.get("state_per_row", 0) + memory.get("tick_per_row", 0)
    return memory.get("weights", 0) + memory.get("caches", 0) + info.slots * row


def memory_facts(info: BackendInfo, share: DeviceShare = ALONE) -> MemoryFacts | None:
    """A backend's report on memory: ``weights``, ``state_per_row``, ``tick_per_row``, ``caches`` and
    ``total``.

    If ``total`` is missing, a backend on the CPU has the host's memory. The result is None if any of these is
    unknown.
    """
    total = info.memory.get("total", host_bytes() if info.device == "cpu" else None)
    weights, row = info.memory.get("weights"), info.memory.get("state_per_row")
    if total is None or weights is None or row is None:
        return None
    taken = share.taken_bytes.get(info.device, 0)
    row += info.memory.get("tick_per_row", 0)
    return MemoryFacts(total, weights, row, taken, info.memory.get("caches", 0))


def with_rings(
    facts: MemoryFacts | None, info: BackendInfo, rings: RingBytes, share: DeviceShare
) -> list[MemoryFacts]:
    """The memory of the device and the memory of the host, which holds the rings: each limits the number of
    rows.
    """
    found = [facts] if facts is not None else []
    if info.device != "cpu":
        host = MemoryFacts(host_bytes(), 0, rings.row, share.taken_bytes.get("cpu", 0), 0, rings.fixed)
        return [*found, host]
    return [replace(it, row_bytes=it.row_bytes + rings.row, spare_bytes=rings.fixed) for it in found]

"""Making the backend with the right number of rows: the one asked for, or as many as can be answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from antiphon.backends.base import Ageing, Backend, BackendInfo, Resizable, StepInputs, ThreadChoosing
from antiphon.engine.capacity import (
    MemoryFacts,
    TickTime,
    calls_in_time,
    check_fit,
    rows_in_time,
    rows_that_fit,
    tick_limit_s,
)
from antiphon.engine.computed import computed_slots
from antiphon.engine.config import EngineConfig
from antiphon.engine.memory import host_bytes
from antiphon.errors import BackendError, ConfigError
from antiphon.ipc.memory import RingBytes
from antiphon.log import Log
from antiphon.models.spec import ModelSpec

BackendFactory: TypeAlias = Callable[[int], Backend]
"""Makes a backend with so many rows."""


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What of a device is left to a model, when others of the same process use it too.

    ``taken_bytes`` is what models made before have, by device. ``models`` share the device in all;
    ``models_waiting`` of them, this one included, are not made yet.
    """

    taken_bytes: Mapping[str, int] = field(default_factory=dict)
    models: int = 1
    models_waiting: int = 1


ALONE = DeviceShare()

Rings: TypeAlias = Callable[[ModelSpec], RingBytes]
"""What the calls of a model take of the machine's memory."""


def _no_rings(_: ModelSpec) -> RingBytes:
    return RingBytes(0, 0)


UNTIMED_STEPS = 2
TIMED_STEPS = 5
CHOOSING_ROWS = 16
"""The most rows with which a backend chooses how it uses threads: more take longer."""
AGED_FRAMES = 250
"""Rows are timed with full contexts; a codec's are full by then: Mimi looks 125 frames back."""


def make_sized(
    factory: BackendFactory,
    config: EngineConfig,
    clock: Callable[[], float],
    share: DeviceShare = ALONE,
    rings: Rings = _no_rings,
) -> Backend:
    """A backend, not yet warm, with ``config.slots`` rows or, when that is None, as many as it can answer.

    For the latter, backends are made (or resized, where they can be) and timed with more and more ready rows,
    up to what memory holds, once they have chosen how to use threads. A backend whose ticks always compute
    all its rows (:meth:`Backend.plan`) is doubled until it is too slow. Of another the ready rows of a tick
    are timed, and more calls fit than that. On a card whose constants are known the first number timed is the
    one computed for it. A tts model cannot be timed without a text: there memory decides, what is computed,
    and what the backend says a row takes. ``rings`` says what calls take of the machine's memory, beside the
    model's on its device.

    Raises:
        ConfigError: the rows do not fit into memory, or nothing is known that could decide.
        BackendError: memory ran out nevertheless.
    """
    backend = _make(factory, 1)  # what a row takes is known from one, before many are asked for
    found = memory_facts(backend.info, share)
    facts = with_rings(found, backend.info, rings(backend.info.spec), share)
    if config.slots is not None:
        return _make_fixed(backend, factory, config.slots, facts)
    if found is None:
        backend.close()
        raise ConfigError(
            f"backend {backend.info.name} does not say what memory a row takes; give a number of slots"
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
    expected = _expected(backend.info, config, share, fitting)
    if not backend.info.kind.has_deadlines:
        spoken = _spoken_in_time(backend.info, config, share)
        return _remake(backend, factory, min(fitting, expected or fitting, spoken))
    limit_s = tick_limit_s(
        backend.info.spec.frame_ms / 1000.0,
        reserve_fraction=config.tick_reserve_fraction,
        models=share.models,
    )
    backend = _with_threads_chosen(backend, factory, min(fitting, CHOOSING_ROWS))
    ticks = measure_ticks(backend, [1], clock, limit_s)
    is_packed, wanted = False, min(fitting, max(2, expected or 0))
    while ticks[-1].seconds <= limit_s and ticks[-1].rows < fitting:
        timed = backend.info.slots
        backend = _remake(backend, factory, wanted)
        is_packed = not config.fixed_batch and backend.plan(np.zeros(1, np.int32)) < backend.info.slots
        larger = [rows for rows in tick_sizes(backend.info.slots) if rows > timed]
        ticks += measure_ticks(backend, larger if is_packed else larger[-1:], clock, limit_s)
        wanted = fitting if is_packed else min(2 * wanted, fitting)
    ready = rows_in_time(ticks, limit_s)
    timely = ready
    if is_packed and not config.fixed_batch:
        timely = calls_in_time(ready, reserve_fraction=config.tick_reserve_fraction)
    slots = min(timely, fitting)
    Log(__name__).debug(
        "slots chosen",
        slots=slots,
        by_memory=fitting,
        by_time=timely,
        ready_rows=ready,
        tick_limit_ms=1000 * limit_s,
        ticks_ms=" ".join(f"{tick.rows}:{1000 * tick.seconds:.3g}" for tick in ticks),
    )
    return _remake(backend, factory, slots)


def _expected(info: BackendInfo, config: EngineConfig, share: DeviceShare, fitting: int) -> int | None:
    """The slots computed for a card whose constants are known, as far as they fit into memory."""
    computed = computed_slots(info, config, share.models)
    if computed is None:
        return None
    slots = min(computed.slots, fitting)
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


def _spoken_in_time(info: BackendInfo, config: EngineConfig, share: DeviceShare) -> int:
    """The most rows that can all be spoken for as fast as they are listened to, by what one row takes."""
    if info.row_ms is None:
        return config.max_slots
    limit_ms = info.spec.frame_ms * (1 - config.tick_reserve_fraction) / share.models
    rows = max(1, int(limit_ms / info.row_ms))
    Log(__name__).debug("slots by time", slots=rows, row_ms=info.row_ms, tick_limit_ms=limit_ms)
    return rows


def _with_threads_chosen(backend: Backend, factory: BackendFactory, rows: int) -> Backend:
    """The backend with one row, as it will run; its choice needs more rows, and lasts where it is resized."""
    if not isinstance(backend, ThreadChoosing):
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
    """The backend with so many rows: itself where it can, so that its weights are loaded once, or another."""
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
    """Tell of memory that is short, as torch does with a RuntimeError, in our own words."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise BackendError(f"a backend with {rows} rows could not be made: {error}") from error


def bytes_taken(info: BackendInfo) -> int:
    """What a backend takes of its device, as far as it says so."""
    memory = info.memory
    return memory.get("weights", 0) + memory.get("caches", 0) + info.slots * memory.get("state_per_row", 0)


def memory_facts(info: BackendInfo, share: DeviceShare = ALONE) -> MemoryFacts | None:
    """What a backend says about memory: ``weights``, ``state_per_row``, ``caches`` and ``total``.

    Without ``total`` a backend on the CPU has the host's memory. None when any of it is unknown.
    """
    total = info.memory.get("total", host_bytes() if info.device == "cpu" else None)
    weights, row = info.memory.get("weights"), info.memory.get("state_per_row")
    if total is None or weights is None or row is None:
        return None
    taken = share.taken_bytes.get(info.device, 0)
    return MemoryFacts(total, weights, row, taken, info.memory.get("caches", 0))


def with_rings(
    facts: MemoryFacts | None, info: BackendInfo, rings: RingBytes, share: DeviceShare
) -> list[MemoryFacts]:
    """The memories that bound the rows: the device's, and the machine's, where rings are."""
    found = [facts] if facts is not None else []
    if info.device != "cpu":
        host = MemoryFacts(host_bytes(), 0, rings.row, share.taken_bytes.get("cpu", 0), 0, rings.fixed)
        return [*found, host]
    return [replace(it, row_bytes=it.row_bytes + rings.row, spare_bytes=rings.fixed) for it in found]


def tick_sizes(slots: int) -> tuple[int, ...]:
    """The ready rows that are timed: 1, 2, 4, 8, ... and the number of slots itself."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)


def measure_ticks(
    backend: Backend, sizes: Sequence[int], clock: Callable[[], float], limit_s: float
) -> list[TickTime]:
    """Ticks over so many ready rows with full contexts, up to the first that takes over ``limit_s``.

    The rows hold noise afterwards; every session resets its row before its first frame.
    """
    spec = backend.info.spec
    if isinstance(backend, Ageing):
        backend.age(AGED_FRAMES if spec.lm is None else max(AGED_FRAMES, spec.lm.context))
    noise = np.random.default_rng(0).standard_normal((backend.info.slots, spec.frame_samples), np.float32)
    ticks: list[TickTime] = []
    for rows in sizes:
        named = np.arange(rows, dtype=np.int32)
        inputs = StepInputs(named, np.zeros(rows, np.bool_), 0.1 * noise[:rows])
        seconds: list[float] = []
        for _ in range(UNTIMED_STEPS + TIMED_STEPS):
            start_s = clock()
            backend.step(inputs)
            seconds.append(clock() - start_s)
        # The least: what disturbed the start-up must not shrink the server for all its life.
        ticks.append(TickTime(rows, min(seconds[UNTIMED_STEPS:])))
        if ticks[-1].seconds > limit_s:
            break
    return ticks

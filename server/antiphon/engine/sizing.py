"""Making the backend with the right number of rows: the one asked for, or as many as can be answered."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from antiphon.backends.base import Backend, BackendInfo, StepInputs
from antiphon.engine.capacity import (
    MemoryFacts,
    TickTime,
    check_fit,
    rows_in_time,
    rows_that_fit,
    tick_limit_s,
)
from antiphon.engine.config import EngineConfig
from antiphon.engine.memory import host_bytes
from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.models.spec import PipelineKind

BackendFactory: TypeAlias = Callable[[int], Backend]
"""Makes a backend with so many rows."""

UNTIMED_STEPS = 2
TIMED_STEPS = 3


def make_sized(factory: BackendFactory, config: EngineConfig, clock: Callable[[], float]) -> Backend:
    """A backend, not yet warm, with ``config.slots`` rows or, when that is None, as many as fit.

    For the latter the model is made up to three times: with one row, to learn what a row costs; with as
    many as memory holds, to time its ticks; and with as many as can be answered in time. Ticks are
    timed with empty contexts. A tts model cannot be timed without a text, so there memory decides alone.

    Raises:
        ConfigError: the rows do not fit into memory, or nothing is known that could decide.
    """
    if config.slots is not None:
        backend = factory(config.slots)
        facts = memory_facts(backend.info)
        if facts is not None:
            check_fit(facts, config.slots)
        return backend
    probe = factory(1)
    facts, name = memory_facts(probe.info), probe.info.name
    probe.close()
    if facts is None:
        raise ConfigError(f"backend {name} does not say what memory a row takes; give a number of slots")
    fitting = rows_that_fit(facts, reserve_fraction=config.memory_reserve_fraction, at_most=config.max_slots)
    backend = factory(fitting)
    if backend.info.kind is PipelineKind.TTS:
        return backend
    limit_s = tick_limit_s(backend.info.spec.frame_ms / 1000.0, reserve_fraction=config.tick_reserve_fraction)
    ticks = measure_ticks(backend, clock, limit_s)
    timely = rows_in_time(ticks, limit_s)
    Log(__name__).info(
        "slots chosen",
        slots=min(fitting, timely),
        by_memory=fitting,
        by_time=timely,
        tick_limit_ms=1000 * limit_s,
        ticks_ms=" ".join(f"{tick.rows}:{1000 * tick.seconds:.3g}" for tick in ticks),
    )
    if timely >= fitting:
        return backend
    backend.close()
    return factory(timely)


def memory_facts(info: BackendInfo) -> MemoryFacts | None:
    """What a backend says about memory: ``weights``, ``state_per_row`` and ``total`` of ``info.memory``.

    Without ``total`` a backend on the CPU has the host's memory. None when any of it is unknown.
    """
    total = info.memory.get("total", host_bytes() if info.device == "cpu" else None)
    weights, row = info.memory.get("weights"), info.memory.get("state_per_row")
    if total is None or weights is None or row is None:
        return None
    return MemoryFacts(total, weights, row)


def measure_ticks(backend: Backend, clock: Callable[[], float], limit_s: float) -> list[TickTime]:
    """Ticks with all rows busy, from the smallest bucket up, ending with the first one over ``limit_s``.

    The rows hold noise afterwards; every session resets its row before its first frame.
    """
    spec = backend.info.spec
    noise = (
        np.random.default_rng(0).standard_normal((backend.info.slots, spec.frame_samples), np.float32) * 0.1
    )
    ticks: list[TickTime] = []
    for rows in backend.info.buckets:
        inputs = StepInputs(np.ones(rows, np.bool_), np.zeros(rows, np.bool_), noise[:rows])
        seconds: list[float] = []
        for _ in range(UNTIMED_STEPS + TIMED_STEPS):
            start_s = clock()
            backend.step(inputs)
            seconds.append(clock() - start_s)
        ticks.append(TickTime(rows, statistics.median(seconds[UNTIMED_STEPS:])))
        if ticks[-1].seconds > limit_s:
            break
    return ticks

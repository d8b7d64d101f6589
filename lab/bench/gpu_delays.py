"""The step "delays" of ``lab.bench.gpu_session``, which times the host's part of a tick to explain late
ticks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from antiphon.backends.torch.executor import TorchRows
from lab.bench.gpu_card import Task, Values, make_backend, note
from lab.bench.gpu_ticks import fill_context, our_tick, quantiles
from lab.bench.gpu_timings import FEW_TICKS, SILENT_TICKS, TICKS

WORST = 5
LAID_OUT = ("_choose", "_place", "arrive", "_leave")


def delays(task: Task) -> Values:
    """Measure the host's milliseconds between the parts of a tick with full rings, first with Python's
    garbage collector, then without. Returns quantiles, and the ticks with the longest first stage.

    A part is a method of the executor, or the launch of a stage. "device" are times between events of the
    GPU; that of the first stage includes the host's parts before its launch.
    """
    backend, marks = make_backend(task), list[tuple[str, float]]()
    executor = backend.executor
    assert isinstance(executor, TorchRows)
    for name in LAID_OUT:
        _mark(executor, name, lambda *_, name=name: name, marks)
    _mark(executor._runner, "run", lambda stage, *_: f"launch {stage}", marks)
    tick, found = our_tick(backend, task.batch), Values(calls=task.batch)
    with torch.no_grad():
        fill_context(backend, task.batch, task.size.lm["context"])
        for _ in range(2 * SILENT_TICKS):
            tick()
        for name in ("with a collector", "without"):
            if name == "without":
                gc.disable()
            parts = [_parts(tick, marks) for _ in range(FEW_TICKS if task.is_small else TICKS)]
            late = sorted(parts, key=lambda one: -one["device encode"])[:WORST]
            names = dict.fromkeys(name for one in parts for name in one)
            times = {part: quantiles([one.get(part, 0.0) for one in parts]) for part in names}
            found[name] = {"ms": times, "latest": late, "spread": _spread(parts)}
            note(found)
    gc.enable()
    return found


def _mark(thing: Any, name: str, said: Callable[..., str], marks: list[tuple[str, float]]) -> None:
    """Record the time at which each call of a method of one object returns."""
    method = getattr(thing, name)

    def marked(*given: Any, **named: Any) -> Any:
        out = method(*given, **named)
        marks.append((said(*given), time.perf_counter()))
        return out

    vars(thing)[name] = marked


def _parts(tick: Callable[[], dict[str, float]], marks: list[tuple[str, float]]) -> dict[str, float]:
    marks.clear()
    before_s = time.perf_counter()
    stages, found = tick(), dict[str, float]()
    for name, at_s in [*marks, ("end", time.perf_counter())]:
        found[name] = found.get(name, 0.0) + 1000 * (at_s - before_s)
        before_s = at_s
    return found | {f"device {name}": value_ms for name, value_ms in stages.items()}


def _spread(parts: list[dict[str, float]]) -> dict[str, float]:
    """How each part goes with the first stage: the correlation of their times."""
    first = np.array([one["device encode"] for one in parts])
    found = {}
    for name in parts[0]:
        other = np.array([one.get(name, 0.0) for one in parts])
        found[name] = float(np.corrcoef(first, other)[0, 1]) if first.std() and other.std() else 0.0
    return found

"""Times ticks on a device: quantiles, launches, memory, and the reference bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from antiphon.backends.base import FRAMES, RowSnapshot, StepInputs
from antiphon.backends.host import HostBackend
from antiphon.backends.torch.executor import TorchRows

if TYPE_CHECKING:
    from lab.bench.harness import Values

WARM_UP_TICKS = 4


def quantiles(times_ms: list[float]) -> Values:
    """Return p50 and p99 of the times."""
    p50, p99 = np.quantile(times_ms, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99)}


def time_ticks(tick: Callable[[], dict[str, float]], ticks: int, *, silent: int) -> Values:
    """Run ticks that return their stages' milliseconds; returns quantiles of the total and of each stage.

    Some uncounted ticks run before them, including the first ``silent`` of a call, which decode nothing.
    """
    for _ in range(WARM_UP_TICKS + silent):
        tick()
    times: dict[str, list[float]] = {"tick": []}
    for _ in range(ticks):
        start_s = time.perf_counter()
        stages = tick()
        times["tick"].append(1000 * (time.perf_counter() - start_s))
        for name, value_ms in stages.items():
            times.setdefault(name, []).append(value_ms)
    return {name: quantiles(found) for name, found in times.items()}


def our_tick(backend: HostBackend, rows: int) -> Callable[[], dict[str, float]]:
    """Return a callable that runs one tick of all rows and returns its milliseconds by stage."""
    everyone, continues_elsewhere = np.arange(rows, dtype=np.int32), np.zeros(rows, dtype=np.bool_)
    random = np.random.default_rng(0)
    pcm = random.normal(0, 0.1, (rows, backend.info.spec.frame_samples)).astype(np.float32)
    return lambda: dict(backend.step(StepInputs(everyone, continues_elsewhere, pcm)).stage_ms)


def full_row(backend: HostBackend, frames: int) -> RowSnapshot:
    """Return the state of a row that appears to have received ``frames`` frames, with rings full of noise."""
    assert isinstance(backend.executor, TorchRows)
    specs, device = backend.executor.pipeline.state.specs, backend.executor.pipeline.device
    tensors = dict(backend.snapshot(0).tensors)
    seen = {
        name: frames * (1 if name.startswith("lm.") else 2) for name in specs if name.endswith(".position")
    }
    for name, positions in seen.items():
        tensors[name].fill_(positions)
    for name, spec in specs.items():
        if spec.position is None:
            continue
        whole = torch.empty(spec.shape, device=device)
        noise = whole.fill_(0.02) if name.endswith("_scale") else whole.normal_()
        noise = noise * 40 if spec.dtype == torch.int8 else noise
        tensors[name] = spec.cut(noise.to(spec.dtype), tensors)
    tensors[FRAMES] = np.array(frames)
    return RowSnapshot(backend.info.name, tensors, 0)


def fill_context(backend: HostBackend, rows: int, frames: int) -> None:
    """Make every row appear to have received ``frames`` frames."""
    full = full_row(backend, frames)
    for row in range(rows):
        backend.restore(row, full)


def mark(marks: list[float], device: torch.device) -> None:
    """Wait for the device, and append the time to ``marks``."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    marks.append(time.perf_counter())

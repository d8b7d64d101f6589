"""Common parts of the steps of ``lab.bench.gpu_session``: their settings, their models, and times on a
device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.models.costs import GpuCard
from lab.bench.gpu_costs import card_of
from lab.bench.gpu_models import Form, Size, make_modules, model_spec, published_sizes, reads, small_size

Values: TypeAlias = dict[str, Any]

USED_SHARE = 0.9
"""Share of the memory that is free next to the weights, for state: the rest is for activations and captured
graphs."""

WARM_UP_RUNS = 3
LEAST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Task:
    """The settings of a step.

    ``is_small``: shrunk models and few turns, for a CPU. ``is_shallow``: few layers, of full width. ``bits``
    are those of weights, keys and values: 8, or 16 for no rounding.
    """

    model: str
    batch: int
    is_small: bool
    out: Path
    is_shallow: bool = False
    bits: int = 8

    @property
    def size(self) -> Size:
        """The shape of the model."""
        size = published_sizes()[self.model]
        if self.is_shallow:
            size = replace(size, lm={**size.lm, "num_layers": 2, "depformer_num_layers": 1})
        return small_size(size) if self.is_small else size

    @property
    def form(self) -> Form:
        """The number formats of the model: INT8 or, with 16 bits, no rounding; the rest in bfloat16 on a
        GPU."""
        dtype = torch.bfloat16 if device().type == "cuda" else torch.float32
        return Form.of(is_int8=self.bits == 8, dtype=dtype)


def device() -> torch.device:
    """Return the GPU, or the CPU if there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def card_here() -> GpuCard:
    """Return the constants of this GPU, which are printed next to the measurements; an H200's on a CPU."""
    return card_of(torch.cuda.get_device_name() if device().type == "cuda" else "")


def fitted(task: Task) -> Task:
    """Return the task with at most as many rows as fit into the GPU's memory with the weights."""
    if device().type == "cpu":
        return task
    cost, free_bytes = reads(task.size, task.form), torch.cuda.mem_get_info()[0]
    rows = int(USED_SHARE * (free_bytes - cost.resident_bytes)) // cost.row_bytes
    return replace(task, batch=min(task.batch, max(1, rows)))


def note(values: Values) -> None:
    """Print a line of JSON with a step's results so far, which are kept if its time runs out."""
    print(json.dumps(values, default=str), flush=True)


def make_backend(task: Task) -> HostBackend:
    """Return a backend of ``task.batch`` rows, with random weights made on the device."""
    spec = model_spec(task.size)
    with torch.no_grad():
        modules = make_modules(task.size, task.form, device())
        return HostBackend(spec, TorchFrames(spec, *modules), slots=task.batch)


def median_ms(run: Callable[[], object], seconds: float = 0.25) -> float:
    """Measure the median time of a callable as a CUDA graph, by events of the device; on a CPU that of one
    run.

    It is captured, so that the host's cost of launches is not included.
    """
    if device().type == "cpu":
        start_s = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - start_s)
    run = _captured(run)
    for _ in range(WARM_UP_RUNS):
        run()
    torch.cuda.synchronize()
    times_ms: list[float] = []
    end_s = time.perf_counter() + seconds
    while len(times_ms) < LEAST_RUNS or time.perf_counter() < end_s:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(torch.cuda.current_stream())
        run()
        end.record(torch.cuda.current_stream())
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return sorted(times_ms)[len(times_ms) // 2]


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph.replay


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the norm of the difference divided by the norm of ``want``, in float64."""
    return float((got.double() - want.double()).norm() / want.double().norm())

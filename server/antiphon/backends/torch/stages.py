"""Running a tick's stages: eagerly, or as CUDA graphs captured once per shape.

A stage reads and writes only buffers that stay where they are, so the same function serves both ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

import torch

Stage = Callable[[], None]


class StageRunner:
    """Runs stages on one device and times them.

    On CUDA a stage is captured as a graph the second time its key is seen (the first run loads kernels
    and workspaces, which capture forbids) and replayed from then on. All graphs share one memory pool:
    they never run at the same time, and leave nothing behind but what they wrote into the buffers.

    Not measured: the graphs have been run on no GPU yet.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with nothing captured."""
        self._device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    @property
    def on_cuda(self) -> bool:
        """Whether stages become graphs."""
        return self._device.type == "cuda"

    def begin(self) -> None:
        """Start the clock of a tick."""
        self._marks = [("", self._now())]

    def run(self, name: str, key: Hashable, stage: Stage) -> None:
        """Run a stage. ``key`` holds everything its captured form depends on."""
        if not self.on_cuda:
            stage()
        elif (graph := self._graphs.get((name, key))) is not None:
            graph.replay()
        elif (name, key) in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                stage()
            self._graphs[name, key] = graph
            graph.replay()
        else:
            stage()
            self._graphs[name, key] = None
        self._marks.append((name, self._now()))

    def finish(self) -> dict[str, float]:
        """Wait for the device; milliseconds by stage."""
        if self.on_cuda:
            torch.cuda.synchronize(self._device)
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return {name: _elapsed_ms(start, end) for (_, start), (name, end) in pairs}

    def forget(self) -> None:
        """Drop every captured graph: something that was baked into them has changed."""
        self._graphs.clear()

    def _now(self) -> float | torch.cuda.Event:
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _elapsed_ms(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(start.elapsed_time(end))
    assert isinstance(start, float)
    assert isinstance(end, float)
    return 1000.0 * (end - start)

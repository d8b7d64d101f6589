"""Running a tick's stages: eagerly, or as CUDA graphs captured once per shape.

A stage reads and writes only buffers that stay where they are, so the same function serves both ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from antiphon.log import Log

Stage = Callable[[], None]


class StageRunner:
    """Runs stages on one device and times them.

    On CUDA a stage is captured as a graph the second time its key is seen (the first run loads kernels
    and workspaces, which capture forbids) and replayed from then on. All graphs share one memory pool:
    they never run at the same time, and leave nothing behind but what they wrote into the buffers. A
    stage has no host sync, draws from no generator of torch's, and allocates only what it throws away.

    After :meth:`settle` nothing is captured: a capture waits for the whole device, which makes every call's
    frame late, and it fails while another model of the process captures. A stage with a new key then runs
    eagerly; ``late_runs`` counts these runs, and the first one is logged.

    Ticks have a stream of their own, so that two models of one process do not wait for each other's.

    On CUDA this turns cuDNN's TF32 off for convolutions of the process: with its ten bits of mantissa Mimi's
    would give other codes than they give on a CPU. torch refuses a process that sets TF32 by both of its
    interfaces; this is the newer one.

    Not measured: the graphs have been run on no GPU yet.
    """

    def __init__(self, device: torch.device) -> None:
        """Begin with nothing captured."""
        self._device = device
        if self.on_cuda:
            cudnn: Any = torch.backends.cudnn
            cudnn.conv.fp32_precision = "ieee"
        # Its own: torch's default one for captures is one a process, on the device that first captured.
        self._stream = torch.cuda.Stream(device) if self.on_cuda else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}
        self._is_settled = False
        self.late_runs = 0
        self._pool = self._new_pool()
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []

    @property
    def on_cuda(self) -> bool:
        """Whether stages become graphs."""
        return self._device.type == "cuda"

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the device current in this thread: Triton launches there, wherever its tensors are."""
        with torch.cuda.device(self._device) if self.on_cuda else nullcontext():
            yield

    @contextmanager
    def tick(self) -> Iterator[None]:
        """A tick: its clock starts, and its copies and stages go behind what the device was given before."""
        if self._stream is None:
            self._marks = [("", self._now())]
            yield
            return
        with self.on_device():  # capture takes place there too
            outside = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(outside)
            with torch.cuda.stream(self._stream):
                self._marks = [("", self._now())]
                try:
                    yield
                finally:
                    outside.wait_stream(self._stream)

    def run(self, name: str, key: Hashable, stage: Stage) -> None:
        """Run a stage. ``key`` holds everything its captured form depends on."""
        if self.on_cuda:
            self._run_on_cuda((name, key), stage)
        else:
            stage()
        self._marks.append((name, self._now()))

    def _run_on_cuda(self, key: Hashable, stage: Stage) -> None:
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
        elif self._is_settled:
            stage()
            self.late_runs += 1
            if self.late_runs == 1:
                Log(__name__).warning("a stage ran without a graph", key=str(key))
        elif key not in self._graphs:
            stage()
            self._graphs[key] = None
        else:
            graph = torch.cuda.CUDAGraph()
            # The outer block makes the current stream current again even when ending a capture raises.
            # "thread_local": what another thread asks of CUDA meanwhile is no fault of this capture.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                stage()
            self._graphs[key] = graph
            graph.replay()

    def finish(self) -> dict[str, float]:
        """Wait for the device; milliseconds by stage."""
        if self.on_cuda:
            # Not for the whole device: that is an error while another model's thread captures on it.
            torch.cuda.current_stream(self._device).synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return {name: _elapsed_ms(start, end) for (_, start), (name, end) in pairs}

    def settle(self) -> None:
        """Capture no more: every shape that ticks have has been seen."""
        self._is_settled = True

    def forget(self) -> None:
        """Drop every captured graph: something that was baked into them has changed.

        All at once: graphs captured on one stream share cuBLAS's workspace, which torch may free with any.
        """
        self._graphs.clear()
        self._is_settled = False
        self._pool = self._new_pool()  # torch refuses a pool that no graph holds any more

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.on_cuda else None

    def _now(self) -> float | torch.cuda.Event:
        if not self.on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _elapsed_ms(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(start.elapsed_time(end))
    assert isinstance(start, float)
    assert isinstance(end, float)
    return 1000.0 * (end - start)

"""A recorded graph for machines without CUDA: the torch operations of a stage, replayed.

As a CUDA graph does, a replay repeats the same operations on the same memory, and runs no line of Python in
between: whatever the host would decide anew is frozen. Operations run while they are recorded, which a
capture's do not; the recorder puts the static buffers back as they were.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from antiphon.backends.base import IntArray
from antiphon.backends.torch.pipeline import WHOLE_RING, BatchLayout, LayoutKind, Pipeline, place_rows
from antiphon.backends.torch.state import NO_ROW, Run

HOST_WAITS = frozenset(
    {
        "_local_scalar_dense",
        "item",
        "nonzero",
        "nonzero_static",
        "masked_select",
        "unique_consecutive",
        "_unique2",
        "is_nonzero",
        "equal",
        "bincount",
        "repeat_interleave",
        "_assert_async",
        "_pin_memory",
        "bernoulli",
        "bernoulli_",
        "multinomial",
        "exponential_",
        "normal_",
        "uniform_",
        "random_",
        "rand",
        "randn",
        "randint",
    }
)
"""Operations that wait for the device, whose results' shapes are data, or that draw from a generator."""


def places_of(layout: LayoutKind, rows: int, filled: int) -> BatchLayout:
    """All rows of so many, which have seen ``filled`` frames."""
    return place_rows(layout, rows, np.arange(rows, dtype=np.int32), np.full(rows, filled - 1))


def whole_places(rows: int, named: IntArray) -> BatchLayout:
    """All rows of so many, each in its own place, in one run: nothing that the host decides differs by tick.

    So what torch's own operations do without kernels can be recorded once and done again.
    """
    placed = np.full(rows, NO_ROW, np.int32)
    placed[named] = named
    runs = (Run(0, 0, rows, WHOLE_RING),)
    return BatchLayout(placed, named.astype(np.intp), runs, WHOLE_RING, is_padded=True)


def stages_of(pipeline: Pipeline, places: BatchLayout) -> dict[str, Callable[[], None]]:
    """A tick's stages as they are captured."""
    found: dict[str, Callable[[], None]] = {
        "reset_rows": pipeline.reset_rows,
        "encode": lambda: pipeline.encode(places),
    }
    if pipeline.generator is not None:
        found["lm"] = lambda: pipeline.run_lm(places)
    if pipeline.spec.kind == "duplex":
        found["reset_encoders"] = pipeline.reset_encoders
    if pipeline.spec.kind != "stt":
        found["decode"] = lambda: pipeline.decode(places)
    return found


def tensors_of(values: object) -> list[Tensor]:
    """Every tensor in nested arguments or results."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def memory_of(tensor: Tensor) -> object:
    """What a tensor lies in; equal for views of one another."""
    if tensor.layout is not torch.strided:
        return id(tensor)  # oneDNN's layout: opaque, and never a view
    return tensor.untyped_storage()._cdata


@dataclass
class Operation:
    """One call into torch, and where its results lie."""

    function: Any
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    results: list[Tensor]

    @property
    def name(self) -> str:
        """Without namespace and overload."""
        return str(self.function.__name__).partition(".")[0]

    @property
    def is_in_place(self) -> bool:
        """Whether it writes into an argument."""
        return bool(self.function._schema.is_mutable)

    @property
    def is_view(self) -> bool:
        """Whether its results are arguments seen otherwise, so that nothing is computed."""
        given = {memory_of(tensor) for tensor in tensors_of((self.arguments, dict(self.options)))}
        shared = [memory_of(tensor) in given for tensor in self.results]
        return not self.is_in_place and bool(shared) and all(shared)

    def again(self) -> None:
        """Compute it into the memory its results have."""
        if self.is_view:
            return
        results = tensors_of(self.function(*self.arguments, **self.options))
        if not self.is_in_place:
            for kept, result in zip(self.results, results, strict=True):
                kept.copy_(result)


class Recorder(TorchDispatchMode):
    """Notes the operations of a block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        results = func(*args, **options)
        self.operations.append(Operation(func, args, options, tensors_of(results)))
        return results

    @property
    def kernels(self) -> list[Operation]:
        """Those that compute something: on a GPU about a kernel each."""
        unlaunched = {"empty", "empty_like", "empty_strided", "new_empty", "device"}
        return [one for one in self.operations if not one.is_view and one.name not in unlaunched]

    def outsiders(self, static: Iterable[Tensor]) -> list[str]:
        """What read memory that is neither static nor of its own making."""
        known = {memory_of(tensor) for tensor in static}
        found = []
        for one in self.operations:
            given = tensors_of((one.arguments, dict(one.options)))
            found += [one.name for tensor in given if memory_of(tensor) not in known]
            known |= {memory_of(tensor) for tensor in one.results}
        return found


@dataclass
class RecordedGraph:
    """What ``torch.cuda.CUDAGraph`` is to a StageRunner."""

    operations: list[Operation] = field(default_factory=list)

    def replay(self) -> None:
        """Do it again."""
        for one in self.operations:
            one.again()


@contextmanager
def recording(graph: RecordedGraph, static: Callable[[], list[Tensor]]) -> Iterator[None]:
    """What ``torch.cuda.graph`` is to a StageRunner: nothing of the block comes to pass."""
    buffers = static()
    before = [buffer.clone() for buffer in buffers]
    with Recorder() as recorder:
        yield
    graph.operations = recorder.operations
    for buffer, kept in zip(buffers, before, strict=True):
        buffer.copy_(kept)


def left_behind(stage: Callable[[], None]) -> list[str]:
    """The operations of a stage whose results are still in memory when it is over."""
    gc.collect()
    with Recorder() as recorder:
        stage()
    made = [
        (one.name, weakref.ref(tensor))
        for one in recorder.operations
        if not one.is_in_place and not one.is_view
        for tensor in one.results
    ]
    recorder.operations.clear()
    del recorder
    gc.collect()
    return [name for name, tensor in made if tensor() is not None]

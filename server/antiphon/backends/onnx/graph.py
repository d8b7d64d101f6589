"""One graph over S rows: its state, its buffers, and runs over windows of rows without copies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.backends.base import IntArray
from antiphon.backends.onnx.sessions import SplitSession, onnxruntime
from antiphon.backends.snapshots import TensorSpec
from antiphon.errors import CheckpointFormatError
from antiphon.models.manifest import ROWS, Array, GraphFormat, StateFormat, TensorFormat
from antiphon.models.onnx_file import read_opset

SLOT_AXES: Final[Mapping[str, int]] = {
    "k": 1, "v": 1, "k_scale": 1, "v_scale": 1, "k_offset": 1, "k_across": 2,
}  # fmt: skip
"""The last part of a ring's name, ``MODULE.LAYER.PART``, and the slot axis of a row's tensor.

``MODULE.position`` counts the written positions.
"""


class RowState:
    """S rows of a graph's state, each tensor ``[S, *shape]``.

    A reset does not erase a tensor that no run changes (``StateFormat.output`` None): it is large, and is
    overwritten when the row gets another voice.
    """

    def __init__(self, form: GraphFormat, rows: int) -> None:
        """Allocate ``rows`` fresh rows."""
        self.specs = {entry.name: _spec_of(form, entry) for entry in form.state}
        self.arrays: dict[str, Array] = {e.name: form.input(e.name).allocate(rows) for e in form.state}
        for entry in form.state:
            if entry.fill:  # zeros already, without memory until they are written
                self.arrays[entry.name][:] = entry.fill

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Reset rows to fresh ones, bit for bit: old content is erased, not only hidden.

        Of a ring only the filled part is erased, because the rest is already fresh.
        """
        for row in rows:
            own = {name: array[row, ...] for name, array in self.arrays.items()}
            parts = [(spec.cut(own[spec.name], own), spec.fill) for spec in self._written]
            for part, fill in parts:
                part[...] = fill

    @property
    def _written(self) -> list[TensorSpec]:
        return [spec for spec in self.specs.values() if not spec.is_kept]

    def gather(self, source: RowState, rows: IntArray) -> None:
        """Copy ``rows`` of another state into the first rows of this one."""
        for name, array in self.arrays.items():
            np.take(source.arrays[name], rows, axis=0, out=array[: rows.size], mode="clip")

    def scatter(self, target: RowState, rows: IntArray) -> None:
        """Copy the changeable state of the first rows of this state into ``rows`` of another."""
        for spec in self._written:
            target.arrays[spec.name][rows] = self.arrays[spec.name][: rows.size]

    def snapshot(self, row: int) -> dict[str, Array]:
        """Copy one row, by name, without the row axis; only the filled part of rings."""
        own = {name: array[row, ...] for name, array in self.arrays.items()}
        return {name: spec.cut(own[name], own).copy() for name, spec in self.specs.items()}

    def restore(self, row: int, snapshot: Mapping[str, Array]) -> None:
        """Write a checked snapshot into a fresh row."""
        for name, spec in self.specs.items():
            spec.cut(self.arrays[name][row, ...], snapshot)[...] = snapshot[name]

    @property
    def bytes(self) -> int:
        """Bytes of the state of all rows."""
        return sum(array.nbytes for array in self.arrays.values())


def _spec_of(form: GraphFormat, entry: StateFormat) -> TensorSpec:
    """A tensor of a graph's state: its name tells whether it is a ring."""
    tensor, (module, _, part) = form.input(entry.name), entry.name.rpartition(".")
    position: str | None = f"{module.rpartition('.')[0]}.position"
    if part not in SLOT_AXES or all(other.name != position for other in form.state):
        position = None
    return TensorSpec(
        entry.name,
        tensor.shape,
        tensor.numpy_dtype,
        entry.fill,
        is_kept=entry.output is None,
        position=position,
        slot_axis=SLOT_AXES.get(part, 1),
    )


BINDINGS: Final = 256
"""Maximum number of windows whose bindings are kept. A binding takes 0.1 ms, a run 0.5 ms or more; 32 rows
have 528 windows, most of which never occur.
"""


class Graph:
    """A graph's ONNX Runtime session and its buffers. Each buffer is ``[S, *shape]`` and never moves.

    The caller fills ``inputs`` and reads ``outputs``; ``state`` persists from run to run. A run over a window
    of rows is bound to those rows of every buffer by address. State marked as aliased in the graph's table is
    updated in place; the next value of other state is written elsewhere and copied back, since the runtime
    may write an output before it has read the input. State without a next value is read-only.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        form: GraphFormat,
        rows: int,
        split: SplitSession | None = None,
    ) -> None:
        """Allocate fresh buffers for ``rows`` rows of a graph that was checked."""
        self._session, self._form, self._split = session, form, split
        remembered = {entry.name for entry in form.state}
        written = [entry for entry in form.state if entry.output is not None]
        produced = {entry.output for entry in written}
        self.inputs = {t.name: t.allocate(rows) for t in form.inputs if t.name not in remembered}
        self.outputs = {t.name: t.allocate(rows) for t in form.outputs if t.name not in produced}
        self.state = RowState(form, rows)
        self._aside = {e.name: form.input(e.name).allocate(rows) for e in written if not e.aliased}
        self._bindings: OrderedDict[tuple[range, int], onnxruntime.IOBinding] = OrderedDict()

    def use(self, session: onnxruntime.InferenceSession, split: SplitSession | None) -> None:
        """Use these sessions, and free the former ones."""
        self._session, self._split = session, split
        self._bindings.clear()

    def prepare(
        self, window: range, session: onnxruntime.InferenceSession | None = None
    ) -> Callable[[], None]:
        """Bind neighbouring rows; return a function that runs them from ``inputs`` and the state to
        ``outputs`` and the new state.

        ``session`` is another session of the same graph.
        """
        session = session or self._session
        return partial(self._run, session, self._binding(window, session), window)

    def prepare_split(self, parts: Sequence[Sequence[range]]) -> Callable[[], None]:
        """Like :meth:`prepare`, for parts that run at the same time. Each part runs its windows one after the
        other.
        """
        assert self._split is not None
        session, pool = self._split.session, self._split.pool
        bound = [[self.prepare(window, session) for window in part] for part in parts]
        return partial(_run_split, pool, bound)

    def _run(
        self, session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding, window: range
    ) -> None:
        session.run_with_iobinding(binding)
        part = slice(window.start, window.stop)
        for name, aside in self._aside.items():
            self.state.arrays[name][part] = aside[part]

    def _binding(self, window: range, session: onnxruntime.InferenceSession) -> onnxruntime.IOBinding:
        key = window, id(session)
        if key not in self._bindings:
            self._bindings[key] = self._bind(window, session)
            if len(self._bindings) > BINDINGS:
                self._bindings.popitem(last=False)
        self._bindings.move_to_end(key)
        return self._bindings[key]

    def _bind(self, window: range, session: onnxruntime.InferenceSession) -> onnxruntime.IOBinding:
        binding = session.io_binding()
        for name, array in (*self.inputs.items(), *self.state.arrays.items()):
            binding.bind_input(name, "cpu", 0, array.dtype.type, *_place(array, window))
        targets = dict(self.outputs)
        for entry in self._form.state:
            if entry.output is not None:
                targets[entry.output] = self._aside.get(entry.name, self.state.arrays[entry.name])
        for name, array in targets.items():
            binding.bind_output(name, "cpu", 0, array.dtype.type, *_place(array, window))
        return binding

    @property
    def bytes(self) -> int:
        """Bytes of state of all rows, including the copies that a run makes."""
        return self.state.bytes + sum(array.nbytes for array in self._aside.values())


def _run_split(pool: ThreadPoolExecutor, parts: Sequence[Sequence[Callable[[], None]]]) -> None:
    """Run the first part here and the others on other threads; all have ended when it returns or raises."""

    def run(part: Sequence[Callable[[], None]]) -> None:
        for each in part:
            each()

    others = [pool.submit(run, part) for part in parts[1:]]
    try:
        run(parts[0])
    finally:
        wait(others)
    for other in others:
        other.result()


def _place(array: Array, window: range) -> tuple[tuple[int, ...], int]:
    """The shape and the address of a window of rows."""
    return (len(window), *array.shape[1:]), array.ctypes.data + window.start * array.strides[0]


def check_graph(session: onnxruntime.InferenceSession, form: GraphFormat, path: Path) -> None:
    """Compare a loaded graph with its manifest.

    Raises:
        CheckpointFormatError: another opset, or an input or output of another name, dtype or shape.
    """
    opset = read_opset(path)
    if opset != form.opset:
        raise CheckpointFormatError(f"{path} has opset {opset}, the manifest says {form.opset}")
    _compare(path, "input", session.get_inputs(), form.inputs)
    _compare(path, "output", session.get_outputs(), form.outputs)


def _compare(
    path: Path, what: str, found: Sequence[onnxruntime.NodeArg], wanted: Sequence[TensorFormat]
) -> None:
    here = {argument.name: _describe(argument) for argument in found}
    there = {tensor.name: str(tensor) for tensor in wanted}
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise CheckpointFormatError(
                f"{path}: {what} {name} is {here.get(name, 'not there')}, the manifest says "
                f"{there.get(name, 'nothing of it')}"
            )


def _describe(argument: onnxruntime.NodeArg) -> str:
    """An input or output as a :class:`TensorFormat`."""
    dtype = argument.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    first, *rest = argument.shape or (None,)
    rows = ROWS if isinstance(first, str) else first
    return f"{dtype} [{', '.join(map(str, (rows, *rest)))}]"

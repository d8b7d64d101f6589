"""A graph that takes row numbers: its rings hold all S rows, of which it gathers those it is given.

A prototype, for measuring alone. It is made of an exported graph: indices of reads and writes of rings get
the row numbers, and what attention looks at is gathered, whole rings of m rows. New positions are written in
place.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from antiphon.backends.onnx.rows import RowState
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.models.graphs import GraphFormat

Rows: TypeAlias = NDArray[np.int32]
NUMBERS: Final = "row_numbers"
CONSTANTS: Final = {"one": [1], "none": [0], "last": [-1], "end": [1 << 30], "column": [-1, 1, 1, 1]}


class GatheringGraph:
    """A session over rings of S rows; little state is packed in numpy, as inputs and outputs are."""

    def __init__(self, path: Path, form: GraphFormat, state: RowState, threads: int) -> None:
        """Make it of an exported graph; ``state`` stays where it is."""
        self._rings = ring_outputs(form)
        model = with_row_numbers(onnx.load(str(path), load_external_data=False), self._rings)
        with tempfile.NamedTemporaryFile(suffix=".onnx", dir=path.parent) as file:
            Path(file.name).write_bytes(model.SerializeToString())
            self._session = open_session(Path(file.name), pick_provider("cpu")[1], threads)
        self._state, self._form = state, form
        slots = len(next(iter(state.arrays.values())))
        own = self._rings.keys() | self._rings.values()
        self.packed = {t.name: t.allocate(slots) for t in (*form.inputs, *form.outputs) if t.name not in own}
        for array in self.packed.values():
            array[:] = 1

    def run(self, rows: Rows) -> None:
        """Advance ``rows`` int32 ``[m]``."""
        binding, numbers = self._session.io_binding(), rows.astype(np.int64)
        binding.bind_input(NUMBERS, "cpu", 0, np.int64, numbers.shape, numbers.ctypes.data)
        small = [entry for entry in self._form.state if entry.name not in self._rings]
        for entry in small:
            self.packed[entry.name][: rows.size] = self._state.arrays[entry.name][rows]
        whole = {output: self._state.arrays[ring] for ring, output in self._rings.items()}
        whole |= {ring: self._state.arrays[ring] for ring in self._rings}
        for tensors, bind in (
            (self._form.inputs, binding.bind_input),
            (self._form.outputs, binding.bind_output),
        ):
            for name in (tensor.name for tensor in tensors):
                array: NDArray[Any] = whole[name] if name in whole else self.packed[name][: rows.size]
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._session.run_with_iobinding(binding)
        for entry in small:
            if entry.output is not None:
                self._state.arrays[entry.name][rows] = self.packed[entry.output][: rows.size]


def ring_outputs(form: GraphFormat) -> dict[str, str]:
    """The rings of a graph and the outputs that are their next values."""
    rings = [entry for entry in form.state if entry.name.endswith((".k", ".v"))]
    return {entry.name: entry.output for entry in rings if entry.output is not None}


def with_row_numbers(model: onnx.ModelProto, rings: dict[str, str]) -> onnx.ModelProto:
    """The graph with one input more."""
    graph, make = model.graph, onnx.helper.make_node
    graph.input.append(onnx.helper.make_tensor_value_info(NUMBERS, onnx.TensorProto.INT64, ["rows"]))
    for name, values in CONSTANTS.items():
        integer = onnx.TensorProto.INT64
        graph.initializer.append(onnx.helper.make_tensor(f"ready.{name}", integer, [len(values)], values))
    for tensor in (*graph.input, *graph.output):
        if tensor.name in rings.keys() | rings.values():
            tensor.type.tensor_type.shape.dim[0].dim_param = "slots"
    nodes = [make("Reshape", [NUMBERS, "ready.column"], ["ready.rows"])]
    for number, node in enumerate(graph.node):
        for place, name in enumerate(node.input):
            if name in rings.values():
                node.input[place] = f"{name}.gathered"
            elif node.op_type == "Shape" and name in rings:
                node.input[place] = NUMBERS  # only ever the number of rows
        if node.op_type in ("GatherND", "ScatterND") and node.input[0] in rings:
            index, own = f"ready.{number}", node.input[1]
            nodes += [
                make("Slice", [own, "ready.none", "ready.one", "ready.last"], [f"{index}.own"]),
                make("Mul", [f"{index}.own", "ready.none"], [f"{index}.zero"]),
                make("Add", [f"{index}.zero", "ready.rows"], [f"{index}.row"]),
                make("Slice", [own, "ready.one", "ready.end", "ready.last"], [f"{index}.rest"]),
                make("Concat", [f"{index}.row", f"{index}.rest"], [index], axis=-1),
            ]
            node.input[1] = index
        nodes.append(node)
        for name in set(node.output) & set(rings.values()):
            nodes.append(make("Gather", [name, NUMBERS], [f"{name}.gathered"], axis=0))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(copies)
    return model

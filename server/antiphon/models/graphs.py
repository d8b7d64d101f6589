"""The graph table of a manifest: what each ONNX file takes, gives, and remembers from frame to frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointFormatError, hint
from antiphon.models.strict import check_keys
from antiphon.values import Types

ROWS: Final = "rows"
"""The name of the first axis of every tensor: how many rows a tick runs over."""

DTYPES: Final[Mapping[str, type[np.generic]]] = {
    "bool": np.bool_,
    "float16": np.float16,
    "float32": np.float32,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
}

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """An input or output of a graph: ``shape`` leaves out the row axis, which comes first."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of an array that holds it."""
        return np.dtype(DTYPES[self.dtype])

    @property
    def row_bytes(self) -> int:
        """Bytes one row of it takes."""
        return self.numpy_dtype.itemsize * int(np.prod(self.shape))

    def allocate(self, rows: int) -> Array:
        """An array of zeros for ``rows`` rows."""
        return np.zeros((rows, *self.shape), self.numpy_dtype)

    def __str__(self) -> str:
        """Dtype and shape, for messages."""
        return f"{self.dtype} [{', '.join(map(str, (ROWS, *self.shape)))}]"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """A tensor that is handed from one run to the next.

    ``name`` is that of the input, ``output`` the output that holds its next value, ``fill`` what fresh
    rows hold. ``aliased`` promises that input and output may be the same memory: whatever else reads the
    input has read it before the output is written. Without ``output`` no run changes it: it is what a row
    was given before (a voice).
    """

    name: str
    output: str | None
    fill: float
    aliased: bool


@dataclass(frozen=True, slots=True)
class GraphFormat:
    """One ONNX file: its role among the manifest's files, its opset, and all of its inputs and outputs."""

    file: str
    opset: int
    inputs: tuple[TensorFormat, ...]
    outputs: tuple[TensorFormat, ...]
    state: tuple[StateFormat, ...] = ()

    def input(self, name: str) -> TensorFormat:
        """The input of this name. Raises CheckpointFormatError naming the nearest."""
        return _named(name, self.inputs, f"graph {self.file}: inputs")

    def output(self, name: str) -> TensorFormat:
        """The output of this name. Raises CheckpointFormatError naming the nearest."""
        return _named(name, self.outputs, f"graph {self.file}: outputs")


def _named(name: str, tensors: tuple[TensorFormat, ...], where: str) -> TensorFormat:
    for tensor in tensors:
        if tensor.name == name:
            return tensor
    names = [tensor.name for tensor in tensors]
    raise CheckpointFormatError(f"{where} lack '{name}'{hint(name, names)}, there are {', '.join(names)}")


def graph_to_json(graph: GraphFormat) -> dict[str, Any]:
    """The graph as JSON values."""
    return asdict(graph)


def graph_from_json(values: Any, where: str) -> GraphFormat:
    """The graph that JSON values describe. Raises CheckpointFormatError naming the faulty key."""
    read = check_keys(
        values,
        where,
        required={"file": str, "opset": int, "inputs": list, "outputs": list},
        optional={"state": list},
    )
    inputs, outputs = (
        tuple(_tensor(tensor, f"{where}.{part}") for tensor in read[part]) for part in ("inputs", "outputs")
    )
    state = tuple(_state(entry, f"{where}.state") for entry in read.get("state", []))
    graph = GraphFormat(read["file"], read["opset"], inputs, outputs, state)
    for entry in state:
        if entry.output is None:
            graph.input(entry.name)
            continue
        given, taken = graph.input(entry.name), graph.output(entry.output)
        if (given.dtype, given.shape) != (taken.dtype, taken.shape):
            raise CheckpointFormatError(
                f"{where}: state {entry.name} is {given}, but its next value {entry.output} is {taken}"
            )
    return graph


def _tensor(values: Any, where: str) -> TensorFormat:
    read = check_keys(values, where, required={"name": str, "dtype": str, "shape": list})
    if read["dtype"] not in DTYPES:
        raise CheckpointFormatError(
            f"{where}.{read['name']}: dtype is '{read['dtype']}', known: {', '.join(DTYPES)}"
        )
    if not all(type(size) is int and size >= 0 for size in read["shape"]):
        raise CheckpointFormatError(
            f"{where}.{read['name']}: shape is {read['shape']}, expected whole numbers"
        )
    return TensorFormat(read["name"], read["dtype"], tuple(read["shape"]))


def _state(values: Any, where: str) -> StateFormat:
    required: dict[str, Types] = {
        "name": str,
        "output": (str, type(None)),
        "fill": float,
        "aliased": bool,
    }
    return StateFormat(**check_keys(values, where, required=required))

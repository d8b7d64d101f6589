"""Tensors of ONNX graphs in and out of their data files, one at a time.

A graph's large tensors lie next to it in one file; https://onnx.ai/onnx/repo-docs/ExternalData.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from antiphon.errors import CheckpointFormatError

Array = NDArray[Any]

_SMALLEST_BYTES = 1024
"""Tensors below this stay in the graph itself."""
_ALIGNMENT_BYTES = 65536
"""Where a tensor may begin, so that runtimes map it into memory on every system."""


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lies in a file of its own."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def tensor_bytes(tensor: TensorProto) -> int:
    """The size of a tensor's data."""
    elements = int(np.prod(tensor.dims, dtype=np.int64))
    return elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def read_tensor(tensor: TensorProto, folder: Path) -> Array:
    """A tensor's values; those of a data file as a view of it that is not in memory yet.

    Raises:
        CheckpointFormatError: the data file is missing, too short, or not next to the graph.
    """
    if not is_external(tensor):
        found: Array = numpy_helper.to_array(tensor)
        return found
    where = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / where.get("location", "")
    if path.parent != folder or not path.is_file():
        raise CheckpointFormatError(f"{tensor.name} should be in {path}, and there is no such file")
    offset, size = int(where.get("offset", 0)), path.stat().st_size
    if offset + tensor_bytes(tensor) > size:
        raise CheckpointFormatError(
            f"{tensor.name} should be {tensor_bytes(tensor):,} bytes at {offset:,} of {path}, "
            f"which has {size:,} bytes"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(tensor.dims))


class TensorWriter:
    """Makes tensors; their data goes into ``file`` as it comes, into themselves if that is None."""

    def __init__(self, file: BinaryIO | None, location: str) -> None:
        """Write to ``file``, which the graph will know as ``location``."""
        self._file, self._location = file, location

    def put(self, name: str, values: Array) -> TensorProto:
        """The tensor of these values."""
        if self._file is None or values.nbytes < _SMALLEST_BYTES:
            return numpy_helper.from_array(np.ascontiguousarray(values), name)
        offset = -(-self._file.tell() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        dtype = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor = TensorProto(name=name, data_type=dtype, dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        where = {"location": self._location, "offset": offset, "length": values.nbytes}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


@contextmanager
def writing_data(graph: Path, *, external: bool) -> Iterator[TensorWriter]:
    """A writer for what is to be the graph ``graph``; ``external`` data goes into ``graph`` + ".data"."""
    if not external:
        yield TensorWriter(None, "")
        return
    path = graph.with_name(graph.name + ".data")
    with path.open("wb") as file:
        yield TensorWriter(file, path.name)

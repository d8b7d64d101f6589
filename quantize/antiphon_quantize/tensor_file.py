"""Writes safetensors tensor by tensor, so that at most one is in memory.

Format: https://huggingface.co/docs/safetensors. The header is first in the file, so names, dtypes and shapes
are planned before the first tensor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from antiphon.models.weights import TensorInfo

Buffer: TypeAlias = bytes | memoryview

DTYPES: Final[Mapping[str, tuple[str, int]]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
"""For each dtype, in the format's spelling: its name in manifests and in torch, and its bytes."""

_ALIGNMENT_BYTES = 8


def tensor_bytes(info: TensorInfo) -> int:
    """The size of a tensor's data."""
    return info.elements * DTYPES[info.dtype][1]


class TensorFile:
    """A safetensors file whose tensors are written in any order, each once."""

    def __init__(self, file: BinaryIO, plan: Mapping[str, TensorInfo], done: Collection[str] = ()) -> None:
        """Write the header for ``plan``, largest dtypes first, which keeps every tensor aligned.

        ``done`` has the tensors that a run with the same plan has already written into the file.
        """
        self._file, self._plan = file, plan
        self._missing = set(plan).difference(done)
        names = sorted(plan, key=lambda name: (-DTYPES[plan[name].dtype][1], name))
        header: dict[str, dict[str, object]] = {}
        starts: dict[str, int] = {}
        end = 0
        for name in names:
            starts[name], end = end, end + tensor_bytes(plan[name])
            shape, offsets = list(plan[name].shape), [starts[name], end]
            header[name] = {"dtype": plan[name].dtype, "shape": shape, "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT_BYTES)
        file.write(len(text).to_bytes(8, "little") + text)
        first = 8 + len(text)
        self._offsets = {name: first + start for name, start in starts.items()}
        file.truncate(first + end)

    def put(self, name: str, info: TensorInfo, data: Buffer) -> None:
        """Write the bytes of one tensor, which must match the plan (raises ValueError with the
        difference)."""
        planned = self._plan[name]
        if info != planned or memoryview(data).nbytes != tensor_bytes(planned):
            raise ValueError(f"{name} is {info} in {memoryview(data).nbytes} bytes, planned was {planned}")
        self._file.seek(self._offsets[name])
        self._file.write(data)
        self._missing.discard(name)

    def sync(self) -> None:
        """Return when all written data is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def check(self) -> None:
        """Raise a ValueError if a tensor was not written."""
        if self._missing:
            raise ValueError(f"{len(self._missing)} tensors were not written: {sorted(self._missing)[:3]}")


@contextmanager
def writing_tensors(
    path: Path, plan: Mapping[str, TensorInfo], done: Collection[str] = ()
) -> Iterator[TensorFile]:
    """Open a file for the planned tensors, which is complete when the block ends without an error.

    If tensors are already ``done``, the file of an interrupted run with the same plan is continued; otherwise
    a new file is written.
    """
    with path.open("r+b" if done else "wb") as file:
        tensors = TensorFile(file, plan, done)
        yield tensors
        tensors.check()

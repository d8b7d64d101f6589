"""Writing safetensors tensor by tensor, so that no more than one has to be in memory.

Format: https://huggingface.co/docs/safetensors. Since a header comes first, names, dtypes and shapes are
planned before the first tensor is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from antiphon.models.weights import TensorInfo

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_ALIGNMENT_BYTES = 8


def tensor_bytes(info: TensorInfo) -> int:
    """The size of a tensor's data."""
    return info.elements * DTYPES[info.dtype].itemsize


class TensorFile:
    """A safetensors file whose tensors are written in any order, each once."""

    def __init__(self, file: BinaryIO, plan: Mapping[str, TensorInfo]) -> None:
        """Write the header for ``plan``, largest dtypes first, which keeps every tensor aligned."""
        self._file, self._plan = file, plan
        self._missing = set(plan)
        names = sorted(plan, key=lambda name: (-DTYPES[plan[name].dtype].itemsize, name))
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

    def put(self, name: str, tensor: Tensor) -> None:
        """Write one tensor, which must be as planned (a ValueError says what is not)."""
        info = self._plan[name]
        if tensor.dtype != DTYPES[info.dtype] or tuple(tensor.shape) != info.shape:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, planned was {info}")
        self._file.seek(self._offsets[name])
        self._file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        self._missing.discard(name)

    def check(self) -> None:
        """Raise a ValueError unless every tensor was written."""
        if self._missing:
            raise ValueError(f"{len(self._missing)} tensors were not written: {sorted(self._missing)[:3]}")


@contextmanager
def writing_tensors(path: Path, plan: Mapping[str, TensorInfo]) -> Iterator[TensorFile]:
    """A new file of the planned tensors, complete when the block is left without an error."""
    with path.open("wb") as file:
        tensors = TensorFile(file, plan)
        yield tensors
        tensors.check()

"""The contents of a safetensors file, read from its header alone.

Format: https://huggingface.co/docs/safetensors (8 bytes of little-endian header size, a JSON object
of name -> dtype, shape, data_offsets, then the data).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.errors import CheckpointFormatError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOATING = frozenset({"F64", "F32", "F16", "BF16"})
_BOOKKEEPING = re.compile(r"\.(_initialized|inited|cluster_usage|cluster_size)$")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor's dtype, in the format's spelling ("BF16"), and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.shape)

    @property
    def is_floating(self) -> bool:
        """Whether the numbers are floats, which packed integers of a quantised layer are not."""
        return self.dtype in FLOATING


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes of the tensors in a safetensors file, without reading their data.

    Raises CheckpointFormatError: not such a file, or its size is not what its header says (a download
    that broke off).
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointFormatError(
                    f"{path} is not a safetensors file: {file_bytes} bytes, header of {header_bytes}"
                )
            header = json.loads(file.read(header_bytes))
            header.pop("__metadata__", None)
            tensors = {name: _tensor(entry) for name, entry in header.items()}
            data_bytes = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CheckpointFormatError(f"{path} is not a safetensors file: {error!r}") from error
    if file_bytes != 8 + header_bytes + data_bytes:
        raise CheckpointFormatError(
            f"{path} has {file_bytes} bytes, its header says {8 + header_bytes + data_bytes}: fetch it again"
        )
    return tensors


def _tensor(entry: Mapping[str, Any]) -> TensorInfo:
    _size(entry["data_offsets"][1])
    return TensorInfo(str(entry["dtype"]), tuple(map(_size, entry["shape"])))


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def count_parameters(tensors: Mapping[str, TensorInfo]) -> int:
    """Numbers a model learned: everything but the RVQ's usage counts (Mimi: 96.1 million)."""
    return sum(info.elements for name, info in tensors.items() if not _BOOKKEEPING.search(name))


def count_modules(tensors: Mapping[str, TensorInfo], prefix: str) -> int:
    """How many numbered modules there are under ``prefix``: 2 for ``emb.0.weight`` and ``emb.1.weight``."""
    start = f"{prefix}."
    numbers = {name[len(start) :].split(".", 1)[0] for name in tensors if name.startswith(start)}
    return sum(number.isdecimal() for number in numbers)

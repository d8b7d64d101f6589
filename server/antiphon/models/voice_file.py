"""Reads a voice's safetensors file: every size is checked before memory is taken for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from antiphon.errors import CheckpointFormatError

MAX_BYTES: Final = 1 << 28
"""The largest voice of Pocket-TTS, half a minute, takes about 75 MB."""

_FLOATS: Final = ("F64", "F32", "F16")
_INTEGERS: Final = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


def read_voice_file(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors in a file, by name: float32, or int64 of whole numbers.

    The format itself says that a tensor is as large as its part of the file, which bounds their number of
    elements; what they take as float32 and int64 is bounded too.

    Raises:
        CheckpointFormatError: it is no such file, too large, or holds tensors of another kind.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointFormatError(f"{path.name} has {size} bytes, a voice has at most {MAX_BYTES}")
        with safe_open(path, framework="np") as file, np.errstate(over="ignore"):
            names = list(file.keys())
            taken_bytes = sum(_taken_bytes(file.get_slice(name)) for name in names)
            if taken_bytes > MAX_BYTES:
                raise CheckpointFormatError(
                    f"the tensors of {path.name} take {taken_bytes} bytes, a voice's at most {MAX_BYTES}"
                )
            return {name: _read(file, name, path) for name in names}
    except (SafetensorError, OSError) as error:
        raise CheckpointFormatError(f"{path.name} is no file of a voice: {error}") from error


def _taken_bytes(part: Any) -> int:
    """What :func:`_read` returns of a tensor takes."""
    size: int = math.prod(part.get_shape())
    return size * (8 if part.get_dtype() in _INTEGERS else 4)


def _read(file: Any, name: str, path: Path) -> NDArray[Any]:
    kind = file.get_slice(name).get_dtype()
    if kind not in _FLOATS + _INTEGERS:
        raise CheckpointFormatError(
            f"{path.name} is no file of a voice: {name[:80]} is {kind}, "
            f"there are: {', '.join(_FLOATS + _INTEGERS)}"
        )
    values: NDArray[Any] = file.get_tensor(name)
    return values.astype(np.float32 if kind in _FLOATS else np.int64, copy=False)

"""Reads the tensors of a file that ``torch.save`` wrote, without torch, and without running what is in it.

Such a file is a zip archive: a pickle that describes a dictionary of tensors, and one file of raw values
for each storage. The pickle is read by an unpickler that knows two functions and a few storage types and
refuses everything else, so that a voice from anywhere can be opened.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError

FloatArray: TypeAlias = NDArray[np.float32]

MAX_BYTES = 1 << 28
"""No voice comes near 256 MiB; a file that unpacks to more is refused before it is read."""

_STORAGES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
}


@dataclass(frozen=True, slots=True)
class _StorageType:
    dtype: str


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a saved dictionary, by name; floating point ones come as float32.

    Raises:
        CheckpointNotFoundError: no file there.
        CheckpointFormatError: not such a file, or one that holds anything but tensors.
    """
    if not path.is_file():
        raise CheckpointNotFoundError(f"no file at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(item.file_size for item in archive.infolist())
            if size > MAX_BYTES:
                raise CheckpointFormatError(f"{path} unpacks to {size} bytes, more than {MAX_BYTES}")
            found = _read(archive)
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, TypeError, EOFError) as error:
        raise CheckpointFormatError(f"{path} is not a file of tensors: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, np.ndarray) for value in found.values()):
        raise CheckpointFormatError(f"{path} does not hold a dictionary of tensors")
    return found


def _read(archive: zipfile.ZipFile) -> Any:
    inside = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if inside is None:
        raise pickle.UnpicklingError("it has no data.pkl")
    folder = inside.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
        raise pickle.UnpicklingError("its numbers are not little endian")
    with archive.open(inside) as file:
        return _Unpickler(file, archive, folder).load()


class _Unpickler(pickle.Unpickler):
    """Knows dictionaries, how a tensor is rebuilt from its storage, and nothing else."""

    def __init__(self, file: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        raise pickle.UnpicklingError(f"it names {module}.{name}, which no tensor needs")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        kind, storage, key, _, count = pid
        if kind != "storage" or not isinstance(storage, _StorageType):
            raise pickle.UnpicklingError(f"it refers to {kind!r}")
        raw = self._archive.read(f"{self._folder}data/{key}")
        if storage.dtype == "bfloat16":  # the upper half of a float32
            return (np.frombuffer(raw, "<u2", count).astype(np.uint32) << 16).view(np.float32)
        values = np.frombuffer(raw, np.dtype(storage.dtype).newbyteorder("<"), count)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


def _rebuild(
    storage: NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> NDArray[Any]:
    """What ``torch._utils._rebuild_tensor_v2`` is: a view of a storage, here checked and copied."""
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    sane = offset >= 0 and all(size >= 0 for size in shape) and all(stride >= 0 for stride in strides)
    if not sane or (math.prod(shape) > 0 and last >= storage.size):
        raise pickle.UnpicklingError(f"a tensor {list(shape)} does not fit its storage of {storage.size}")
    item = storage.itemsize
    steps = [stride * item for stride in strides]
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps).copy()

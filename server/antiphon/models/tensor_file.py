"""Reads the tensors of a file that ``torch.save`` wrote, without torch, and without running what is in it.

Such a file is a zip archive: a pickle that describes a dictionary of tensors, and one file of raw values
for each storage. The pickle is read by a machine that knows the steps a tensor needs and refuses all others
(``models/tensor_pickle.py``), and every size is checked before memory is taken for it, so that a voice from
anywhere can be opened.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError
from antiphon.models.tensor_pickle import StoredTensor, read_pickle

MAX_BYTES: Final = 1 << 28
"""No voice comes near 256 MiB: neither the file, nor its storages, nor its tensors may take more."""

MAX_PICKLE_BYTES: Final = 65_536
"""A tensor takes about a hundred bytes of pickle, a voice has two tensors."""

_STORAGES: Final = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a saved dictionary, by name; floating point ones come as float32.

    Raises:
        CheckpointNotFoundError: no file there.
        CheckpointFormatError: not such a file, or one that holds anything but tensors, or too much of them.
    """
    if not path.is_file():
        raise CheckpointNotFoundError(f"no file at {path}")
    try:
        file_bytes = path.stat().st_size
        if file_bytes > MAX_BYTES:
            raise CheckpointFormatError(f"{path} has {file_bytes} bytes, more than {MAX_BYTES}")
        # In memory, since zipfile asks a file for as many bytes as a damaged directory says.
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            _check_sizes(archive, path, file_bytes)
            return _read(archive, path)
    except CheckpointFormatError:
        raise
    except Exception as error:  # a boundary: zipfile raises a dozen kinds for what is damaged
        raise CheckpointFormatError(f"{path} is not a file of tensors: {error}") from error


def _check_sizes(archive: zipfile.ZipFile, path: Path, file_bytes: int) -> None:
    size = sum(item.file_size for item in archive.infolist())
    if size > file_bytes or any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
        raise CheckpointFormatError(
            f"{path} has {file_bytes} bytes and unpacks to {size}: torch.save compresses nothing"
        )


def _read(archive: zipfile.ZipFile, path: Path) -> dict[str, NDArray[Any]]:
    inside = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if inside is None:
        raise ValueError("it has no data.pkl")
    folder = inside.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
        raise ValueError("its numbers are not little endian")
    pickle_bytes = archive.getinfo(inside).file_size
    if pickle_bytes > MAX_PICKLE_BYTES:
        raise ValueError(f"its data.pkl has {pickle_bytes} bytes, the limit is {MAX_PICKLE_BYTES}")
    found = read_pickle(archive.read(inside))
    if not isinstance(found, dict) or not all(isinstance(value, StoredTensor) for value in found.values()):
        raise CheckpointFormatError(f"{path} does not hold a dictionary of tensors")
    storages = _Storages(archive, folder)
    return {name: storages.read(tensor) for name, tensor in found.items()}


@dataclass(slots=True)
class _Storages:
    """Takes tensors out of an archive, while all of them together stay within ``MAX_BYTES``."""

    archive: zipfile.ZipFile
    folder: str
    taken_bytes: int = 0

    def read(self, tensor: StoredTensor) -> NDArray[Any]:
        """A copy of one tensor.

        Raises:
            ValueError, KeyError: it does not fit its storage, or is of no known kind.
        """
        if tensor.storage_type not in _STORAGES:
            raise ValueError(f"a {tensor.storage_type}; there are: {', '.join(_STORAGES)}")
        dtype = np.dtype(_STORAGES[tensor.storage_type])
        name = f"{self.folder}data/{tensor.key}"
        count = self.archive.getinfo(name).file_size // dtype.itemsize
        size = math.prod(tensor.shape)
        last = tensor.offset + sum(
            (n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)
        )
        # A stride of 0 makes any number of elements of one value: no tensor is larger than its storage.
        if size > count or (size and last >= count):
            raise ValueError(f"a tensor {list(tensor.shape)} does not fit its storage of {count}")
        self.taken_bytes += count * dtype.itemsize + size * max(4, dtype.itemsize)
        if self.taken_bytes > MAX_BYTES:
            raise ValueError(f"its tensors take {self.taken_bytes} bytes, more than {MAX_BYTES}")
        if not size:
            return np.zeros(tensor.shape, np.float32 if dtype.kind == "f" else dtype)
        storage = np.frombuffer(self.archive.read(name), dtype, count)[tensor.offset :]
        steps = [stride * dtype.itemsize for stride in tensor.strides]
        values = np.lib.stride_tricks.as_strided(storage, tensor.shape, steps)
        if tensor.storage_type == "BFloat16Storage":  # the upper half of a float32
            return (values.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore"):
            return values.astype(np.float32) if dtype.kind == "f" else values.astype(dtype.newbyteorder("="))

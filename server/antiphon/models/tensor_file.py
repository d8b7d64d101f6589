"""Reads the tensors of a ``torch.save`` file without torch, and without executing its pickle.

Such a file is a zip archive: a pickle that describes a dictionary of tensors, and one file of raw values for
each storage. Every size is checked before memory is allocated for it, so it is safe to open a voice from an
untrusted source. Python's own unpickler calls the functions and allocates the memory that a pickle names.
This module supports a dozen opcodes and rejects all others. It calls no function, and keeps only values that
are in the bytes themselves.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import CheckpointFormatError, CheckpointNotFoundError

MAX_DIMENSIONS: Final = 8
"""Maximum number of dimensions of a tensor: a voice has four, numpy allows 64."""

MAX_QUOTED: Final = 80
"""Maximum number of characters of a name that an error quotes."""

_MARK: Final = object()
_REBUILD: Final = "torch._utils _rebuild_tensor_v2"
_ORDERED: Final = "collections OrderedDict"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a view of storage ``key``, in elements: its offset, shape and strides, which are not
    negative.
    """

    storage_type: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A function or class that the pickle refers to: a module and a name in it."""

    path: str


@dataclass(frozen=True, slots=True)
class _Storage:
    type: str
    key: str


def read_pickle(data: bytes) -> Any:
    """The values in a pickle: dictionaries, tuples, numbers, text and :class:`StoredTensor`.

    Raises:
        ValueError: it is damaged, or has an opcode that no dictionary of tensors needs.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise ValueError("its pickle has no end")


@dataclass(slots=True)
class _Machine:
    """The stack and the memo of a pickle."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode.

        Raises:
            ValueError: the call is unknown, or lacks an argument.
        """
        if name in _LITERALS:
            self.stack.append(_LITERALS[name](argument))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.peek()
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise ValueError(f"its pickle asks for value {argument}, which it never kept")
            self.stack.append(self.memo[argument])
        elif name in _STEPS:
            _STEPS[name](self)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"its pickle has the step {name}, which no dictionary of tensors needs")

    def peek(self) -> Any:
        """The last value."""
        if not self.stack:
            raise ValueError("its pickle takes more values than it has")
        return self.stack[-1]

    def pop(self) -> Any:
        """Take the last value."""
        value = self.peek()
        del self.stack[-1]
        return value

    def pop_to_mark(self) -> list[Any]:
        """Remove and return the values since the last mark."""
        values: list[Any] = []
        while (value := self.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def tuple_of(self, count: int) -> None:
        """Replace the last values by a tuple of them."""
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(values[::-1]))

    def set_items(self, items: list[Any]) -> None:
        """Add alternating names and values to the dictionary before them."""
        target = self.peek()
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("its pickle sets items of a value that is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError(f"a name in it is a {type(key).__name__}, text is needed")
            target[key] = value

    def name(self) -> None:
        """Replace the last two values by the name of which they are the halves."""
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("its pickle has a name that is no text")
        self.stack.append(_name(f"{module} {name}"))

    def reduce(self) -> None:
        """Execute a call: only a tensor and an empty dictionary are allowed."""
        arguments, function = self.pop(), self.pop()
        if function == _Name(_ORDERED) and arguments == ():
            self.stack.append({})
        elif function == _Name(_REBUILD) and isinstance(arguments, tuple):
            self.stack.append(_tensor(arguments))
        else:
            raise ValueError("its pickle calls a function that no tensor needs")

    def refer(self) -> None:
        """Replace torch's tuple (the word, its type, its key, the device and its length) by a storage."""
        pid = self.pop()
        if not (isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage"):
            raise ValueError("its pickle refers to a value that is no storage")
        _, kind, key, _, _ = pid
        if not (isinstance(kind, _Name) and kind.path.startswith("torch ") and isinstance(key, str)):
            raise ValueError("its pickle refers to a value that is no storage of torch")
        self.stack.append(_Storage(kind.path.removeprefix("torch "), key))


def _name(path: str) -> _Name:
    if path not in (_REBUILD, _ORDERED) and not (path.startswith("torch ") and path.endswith("Storage")):
        raise ValueError(f"it names {path.replace(' ', '.')[:MAX_QUOTED]}, which no tensor needs")
    return _Name(path)


def _tensor(arguments: tuple[Any, ...]) -> StoredTensor:
    """The tensor that ``torch._utils._rebuild_tensor_v2`` would make."""
    if len(arguments) < 4 or not isinstance(arguments[0], _Storage):
        raise ValueError("its pickle makes a tensor of no storage")
    storage, offset, shape, strides = arguments[:4]
    sizes = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else ("",)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("a tensor of it has an offset, a shape or strides that are no sizes")
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions with {len(strides)} strides")
    return StoredTensor(storage.type, storage.key, offset, shape, strides)


_LITERALS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "MARK": lambda _: _MARK,
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "GLOBAL": _name,
    **dict.fromkeys(
        ("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), lambda value: value
    ),
}
_STEPS: Final[Mapping[str, Callable[[_Machine], None]]] = {
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine: machine.tuple_of(1),
    "TUPLE2": lambda machine: machine.tuple_of(2),
    "TUPLE3": lambda machine: machine.tuple_of(3),
    "SETITEMS": lambda machine: machine.set_items(machine.pop_to_mark()),
    "SETITEM": lambda machine: machine.set_items([machine.pop(), machine.pop()][::-1]),
    "STACK_GLOBAL": lambda machine: machine.name(),
    "REDUCE": lambda machine: machine.reduce(),
    "BINPERSID": lambda machine: machine.refer(),
}


MAX_BYTES: Final = 1 << 28
"""Limit on a file, on its storages and on its tensors; a voice takes far less than 256 MiB."""

MAX_PICKLE_BYTES: Final = 65_536
"""Limit on the pickle: a tensor takes about a hundred bytes, and a voice has two tensors."""

_STORAGES: Final = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "<u2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a saved dictionary, by name; floating point ones are returned as float32.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointFormatError: the file has another format, contains other values than tensors, or exceeds a
            limit.
    """
    if not path.is_file():
        raise CheckpointNotFoundError(f"no file at {path}")
    try:
        file_bytes = path.stat().st_size
        if file_bytes > MAX_BYTES:
            raise CheckpointFormatError(f"{path} has {file_bytes} bytes, more than {MAX_BYTES}")
        # In memory, since zipfile would read as many bytes from a file as a damaged directory states.
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            items = archive.infolist()
            size = sum(item.file_size for item in items)
            if size > file_bytes or any(item.compress_type != zipfile.ZIP_STORED for item in items):
                raise CheckpointFormatError(
                    f"{path} has {file_bytes} bytes and unpacks to {size}: torch.save compresses nothing"
                )
            return _read(archive, path)
    except CheckpointFormatError:
        raise
    except Exception as error:  # a boundary: zipfile raises a dozen types for damaged files
        raise CheckpointFormatError(f"{path} is not a file of tensors: {error}") from error


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
    """Reads tensors from an archive, within ``MAX_BYTES`` in total."""

    archive: zipfile.ZipFile
    folder: str
    taken_bytes: int = 0

    def read(self, tensor: StoredTensor) -> NDArray[Any]:
        """A copy of one tensor.

        Raises:
            ValueError, KeyError: it does not fit its storage, or has an unknown type.
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
        # A stride of 0 makes any number of elements from one value: no tensor is larger than its storage.
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

"""Reads the pickle of a file that ``torch.save`` wrote: a dictionary of tensors, by value.

Python's own unpickler calls what the pickle names and takes the memory that it asks for. This one has a dozen
steps, calls nothing, and keeps only what the bytes themselves hold.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_DIMENSIONS: Final = 8
"""A voice has four, numpy knows no more than 64."""

MAX_QUOTED: Final = 80
"""Letters of a name that an error quotes."""

_MARK: Final = object()
_REBUILD: Final = "torch._utils _rebuild_tensor_v2"
_ORDERED: Final = "collections OrderedDict"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A view of storage ``key``, in elements: where it begins, its shape and its strides, none negative."""

    storage_type: str
    key: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """Something the pickle would call or refer to: a module and a name in it."""

    path: str


@dataclass(frozen=True, slots=True)
class _Storage:
    type: str
    key: str


def read_pickle(data: bytes) -> Any:
    """What a pickle holds: dictionaries, tuples, numbers, text and :class:`StoredTensor`.

    Raises:
        ValueError: it is damaged, or takes a step that no dictionary of tensors needs.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise ValueError("its pickle has no end")


@dataclass(slots=True)
class _Machine:
    """The stack and the memory of a pickle."""

    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """Take one step.

        Raises:
            ValueError: it is not known here, or what it needs is not there.
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
        """Take the values since the last mark."""
        values: list[Any] = []
        while (value := self.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def tuple_of(self, count: int) -> None:
        """The last values, as one."""
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(values[::-1]))

    def set_items(self, items: list[Any]) -> None:
        """Put names and values, in turns, into the dictionary before them."""
        target = self.peek()
        if not isinstance(target, dict) or len(items) % 2:
            raise ValueError("its pickle sets items of a value that is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError(f"a name in it is a {type(key).__name__}, text is needed")
            target[key] = value

    def name(self) -> None:
        """A name whose two halves are the last values."""
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("its pickle has a name that is no text")
        self.stack.append(_name(f"{module} {name}"))

    def reduce(self) -> None:
        """Call, in words: only a tensor and an empty dictionary are made."""
        arguments, function = self.pop(), self.pop()
        if function == _Name(_ORDERED) and arguments == ():
            self.stack.append({})
        elif function == _Name(_REBUILD) and isinstance(arguments, tuple):
            self.stack.append(_tensor(arguments))
        else:
            raise ValueError("its pickle calls a function that no tensor needs")

    def refer(self) -> None:
        """A storage, by what torch calls it: the word, its type, its key, the device and its length."""
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


def _same(value: Any) -> Any:
    return value


_LITERALS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "MARK": lambda _: _MARK,
    "EMPTY_DICT": lambda _: {},
    "EMPTY_TUPLE": lambda _: (),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "GLOBAL": _name,
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1"), _same),
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

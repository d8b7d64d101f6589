"""Snapshots' tensors by name, whatever framework they are of: what is kept of them, and which fit a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from antiphon.errors import UnsupportedError

CACHE_BYTES: Final = 1 << 30
"""The most that is kept of voices, and of prompts: a voice of tts-1.6b takes 82 MB in bfloat16, so a dozen;
a second of Moshi 7B's prompts 6.6 MB, so some minutes of personas."""

Tensors: TypeAlias = Mapping[str, Any]

Form: TypeAlias = tuple[Sequence[int], Any]
"""A tensor's shape and dtype."""

T = TypeVar("T")


def part(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The tensors whose names begin with a prefix, under the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def size_of(tensors: Mapping[str, Any]) -> int:
    """Their bytes."""
    return sum(int(tensor.nbytes) for tensor in tensors.values())


def check_tensors(tensors: Mapping[str, Any], wanted: Mapping[str, Form]) -> None:
    """Raise UnsupportedError unless tensors have exactly these names, shapes and dtypes."""
    found = {name: _words(tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    needed = {name: _words(*form) for name, form in wanted.items()}
    different = [name for name in found.keys() | needed.keys() if found.get(name) != needed.get(name)]
    if different:
        name = min(different)
        here, there = found.get(name, "nothing"), needed.get(name, "nothing")
        raise UnsupportedError(
            f"this snapshot is of another model: {name} is {here} in it, and {there} in this model"
        )


def _words(shape: Sequence[int], dtype: Any) -> str:
    return f"{str(dtype).rpartition('.')[2]} {list(shape)}"


def with_prefix(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """The reverse of :func:`part`."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


class SnapshotCache(Generic[T]):
    """Values by key, the least recently used thrown out first."""

    def __init__(self, capacity_bytes: int, size_of: Callable[[T], int]) -> None:
        """Keep at most so many bytes; what is larger than all of it is not kept."""
        self._capacity_bytes, self._size_of = capacity_bytes, size_of
        self._kept: OrderedDict[str, T] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Keys kept."""
        return len(self._kept)

    def get(self, key: str) -> T | None:
        """What is kept under a key, which becomes the one used last."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: str, value: T) -> None:
        """Keep a value, and make room for it."""
        size = self._size_of(value)
        if key in self._kept or size > self._capacity_bytes:
            return
        self._kept[key] = value
        self.bytes += size
        while self.bytes > self._capacity_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= self._size_of(oldest)

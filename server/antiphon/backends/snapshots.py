"""A row's state as named tensors of any framework: descriptions and snapshots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from numpy.typing import NDArray

from antiphon.errors import UnsupportedError

CACHE_BYTES: Final = 1 << 30
"""Limit on the bytes of kept voices, and of kept prompts: a dozen voices of tts-1.6b (82 MB each in
bfloat16), or some minutes of personas of Moshi 7B (6.6 MB a second).
"""

Tensors: TypeAlias = Mapping[str, Any]

Form: TypeAlias = tuple[Sequence[int], Any]
"""A tensor's shape and dtype."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One state tensor: its name, its shape without the row axis, its dtype, and the value of fresh rows.

    ``is_kept``: a reset in a tick does not change it. This is so for large tensors whose old content the next
    session cannot see: for rings the position bounds the visible part, and voices are set by each session. A
    ring has slots, each for one position. ``position`` names the tensor that counts its row's positions, and
    ``slot_axis`` is the axis of ``shape`` with the slots. If ``page_slots`` is above 1, this axis has pages
    of that number of slots, and the last axis has the slots of a page. ``is_pooled``: rows share the memory
    of this ring, in pages.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    fill: int | float = 0
    is_kept: bool = False
    position: str | None = None
    slot_axis: int = 1
    page_slots: int = 1
    is_pooled: bool = False

    def pooled(self) -> TensorSpec:
        """The same specification, for a ring whose memory is shared by the rows."""
        return replace(self, is_pooled=True)

    def pair(self) -> TensorSpec:
        """The same specification, for a row that consists of two sequences."""
        return replace(self, shape=(2, *self.shape), slot_axis=self.slot_axis + 1)

    def positions(self, row: Tensors) -> int | None:
        """The number of positions that a ring has received, from the count in ``row``; None if it is not a
        ring or ``row`` has no count.
        """
        if self.position is None or self.position not in row:
            return None
        return int(row[self.position].max())

    def used(self, row: Tensors) -> int | None:
        """The number of filled slots of a ring, or of pages in use; None means all."""
        seen = self.positions(row)
        return None if seen is None else min(-(-seen // self.page_slots), self.shape[self.slot_axis])

    def cut(self, tensor: Any, row: Tensors) -> Any:
        """The part of a row's tensor that is in use, without a copy."""
        used = self.used(row)
        return tensor if used is None else tensor[(*[slice(None)] * self.slot_axis, slice(used))]


def check_state(tensors: Tensors, specs: Iterable[TensorSpec]) -> None:
    """Raise UnsupportedError if tensors are not a row of this state, with rings cut to their positions."""
    wanted: dict[str, Form] = {}
    for spec in specs:
        shape, used = list(spec.shape), spec.used(tensors)
        if used is not None:
            shape[spec.slot_axis] = used
        wanted[spec.name] = shape, spec.dtype
    check_tensors(tensors, wanted)


def part(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The tensors whose names begin with a prefix, named by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def size_of(tensors: Mapping[str, Any]) -> int:
    """Total bytes of the tensors."""
    return sum(int(tensor.nbytes) for tensor in tensors.values())


def check_tensors(tensors: Mapping[str, Any], wanted: Mapping[str, Form]) -> None:
    """Raise UnsupportedError if the tensors' names, shapes or dtypes differ."""
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
    """Reverse :func:`part`: the tensors with the prefix before their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


class SnapshotCache(Generic[T]):
    """A cache of values by key; the least recently used value is dropped first."""

    def __init__(self, capacity_bytes: int, size_of: Callable[[T], int]) -> None:
        """Keep at most ``capacity_bytes``; a larger value is not kept."""
        self._capacity_bytes, self._size_of = capacity_bytes, size_of
        self._kept: OrderedDict[str, T] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        """Keys kept."""
        return len(self._kept)

    def get(self, key: str) -> T | None:
        """The value under a key, which becomes the most recently used."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: str, value: T) -> None:
        """Keep a value, and drop others to make room."""
        size = self._size_of(value)
        if key in self._kept or size > self._capacity_bytes:
            return
        self._kept[key] = value
        self.bytes += size
        while self.bytes > self._capacity_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= self._size_of(oldest)


class HostArrays:
    """Part of :class:`antiphon.backends.base.DeviceRows`, for executors whose snapshots are numpy arrays on a
    CPU."""

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the tensors unchanged: they are already numpy arrays."""
        return dict(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Return the arrays unchanged."""
        return dict(arrays)

    def age(self, frames: int) -> None:
        """No effect: the age of rows does not change the duration of a tick."""

    def choose_threads(self) -> None:
        """No effect, unless an executor overrides this method."""

    def probe(self) -> None:
        """No effect: a lost device fails every step, and the third consecutive failed step counts as a lost
        device.
        """

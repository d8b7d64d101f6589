"""Upstream's streaming state, seen row by row.

Upstream keeps the state of a whole batch in dataclasses of tensors, one per streaming module
(``moshi/modules/streaming.py``). Row r of every one of those tensors is the whole state of row r.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from moshi.modules.streaming import State, StreamingModule
from moshi.modules.transformer import RingKVCache

from antiphon.backends.base import IntArray
from antiphon.backends.snapshots import Form
from antiphon.errors import UnsupportedError

Module: TypeAlias = StreamingModule[Any]

_RING, _END = ".ring", ".end"
_CAPACITY: Final = 2
"""The axis of a row's ring ``[2, heads, capacity, dim]`` that positions go round."""


class StreamRows:
    """The rows of a module that streams a batch."""

    def __init__(self, module: Module) -> None:
        """Look at a module that streams."""
        self._module = module
        state = module._streaming_state
        assert state is not None
        self._batch, self._device = state.batch_size, state.device

    def views(self) -> dict[str, torch.Tensor]:
        """List the state as views, rows on the first axis, by name.

        The names are stable for one model. The views are valid until the next step, since upstream
        replaces some tensors instead of writing to them. Raises UnsupportedError for a state with a
        tensor that is shared by all rows.
        """
        views: dict[str, torch.Tensor] = {}
        for module_name, state in self._module.get_streaming_state().items():
            for name, view in _views(state):
                if view.shape[0] != self._batch:
                    raise UnsupportedError(
                        f"state {module_name}.{name} is {list(view.shape)}, not one part for each of "
                        f"{self._batch} rows"
                    )
                views[f"{module_name}.{name}"] = view
        return views

    def mask(self, rows: Sequence[int] | IntArray) -> torch.Tensor:
        """The rows as a mask of the batch, bool ``[S]``."""
        mask = np.zeros(self._batch, np.bool_)
        mask[rows] = True
        return torch.from_numpy(mask).to(self._device)

    def reset(self, rows: Sequence[int]) -> None:
        """Make rows like fresh ones.

        Upstream's own reset only forgets how full a KV ring is. What stays in it is masked by a zero
        attention weight, and 0 times NaN is NaN: so the rings are emptied as well.
        """
        if not rows:
            return
        self._module.reset_streaming(self.mask(rows))
        for name, view in self.views().items():
            if name.endswith(_RING):
                view[list(rows)] = 0

    def take(self, row: int) -> dict[str, torch.Tensor]:
        """Copy the state of one row, by name, without the row axis; rings are cut to what is filled."""
        tensors = {name: view[row] for name, view in self.views().items()}
        for name, tensor in tensors.items():
            if name.endswith(_RING):
                end = int(tensors[name.removesuffix(_RING) + _END])
                tensors[name] = tensor.narrow(_CAPACITY, 0, min(end, tensor.shape[_CAPACITY]))
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def forms(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Form]:
        """What a copied row has that is filled as far as this one."""
        wanted: dict[str, Form] = {}
        for name, view in self.views().items():
            shape, end = list(view.shape[1:]), tensors.get(name.removesuffix(_RING) + _END)
            if name.endswith(_RING) and end is not None:
                shape[_CAPACITY] = min(int(end.max()), shape[_CAPACITY])
            wanted[name] = shape, view.dtype
        return wanted

    def put(self, row: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checked row into a fresh one."""
        for name, view in self.views().items():
            target = view[row]
            if name.endswith(_RING):
                target = target.narrow(_CAPACITY, 0, tensors[name].shape[_CAPACITY])
            target.copy_(tensors[name])

    def bytes(self) -> int:
        """Bytes of state of all rows."""
        return sum(view.nbytes for view in self.views().values())


def _views(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, RingKVCache):
            yield f"{field.name}{_RING}", value.cache.movedim(1, 0)  # [2, B, heads, capacity, dim]
            yield f"{field.name}{_END}", value.end_offset
        elif isinstance(value, torch.Tensor):
            yield field.name, value

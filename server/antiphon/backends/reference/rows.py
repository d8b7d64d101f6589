"""Upstream's streaming state, seen row by row.

Upstream keeps the state of a whole batch in dataclasses of tensors, one per streaming module
(``moshi/modules/streaming.py``). Row r of every one of those tensors is the whole state of row r.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from moshi.modules.streaming import State, StreamingModule
from moshi.modules.transformer import RingKVCache

from antiphon.errors import UnsupportedError

Module: TypeAlias = StreamingModule[Any]


def row_tensors(module: Module) -> dict[str, torch.Tensor]:
    """List the state of a streaming module as views, rows on the first axis, by name.

    The names are stable for one model. The views are valid until the next step, since upstream
    replaces some tensors instead of writing to them. Raises UnsupportedError for a state with a
    tensor that is shared by all rows.
    """
    views: dict[str, torch.Tensor] = {}
    for module_name, state in module.get_streaming_state().items():
        for name, view in _views(state):
            if view.shape[0] != state.batch_size:
                raise UnsupportedError(
                    f"state {module_name}.{name} is {list(view.shape)}, not one part for each of "
                    f"{state.batch_size} rows"
                )
            views[f"{module_name}.{name}"] = view
    return views


def _views(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, RingKVCache):
            yield f"{field.name}.ring", value.cache.movedim(1, 0)  # [2, B, heads, capacity, dim]
            yield f"{field.name}.end", value.end_offset
        elif isinstance(value, torch.Tensor):
            yield field.name, value


def reset_rows(module: Module, mask: torch.Tensor) -> None:
    """Make the rows of a bool mask ``[B]`` like fresh ones.

    Upstream's own reset only forgets how full a KV ring is. What stays in it is masked by a zero
    attention weight, and 0 times NaN is NaN: so the rings are emptied as well.
    """
    module.reset_streaming(mask)
    rows = mask.nonzero()[:, 0]
    for state in module.get_streaming_state().values():
        ring = getattr(state, "kv_cache", None)
        if ring is not None:
            ring.cache.index_fill_(1, rows.to(ring.cache.device), 0)


def take_row(module: Module, row: int) -> dict[str, torch.Tensor]:
    """Copy the state of one row, by name, without the row axis."""
    return {name: view[row].clone() for name, view in row_tensors(module).items()}


def put_row(module: Module, row: int, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a copied row into any row of the same model. Raises UnsupportedError when it does not fit."""
    views = row_tensors(module)
    wanted = {name: list(view.shape[1:]) for name, view in views.items()}
    given = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if given != wanted:
        name = min(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise UnsupportedError(
            f"this snapshot is of another model: {name} is {given.get(name)}, not {wanted.get(name)}"
        )
    for name, view in views.items():
        view[row] = tensors[name]


def copy_row(module: Module, source: int, target: int) -> None:
    """Copy the state of one row over another."""
    for view in row_tensors(module).values():
        view[target] = view[source]


def state_bytes(module: Module) -> int:
    """Bytes of state of all rows."""
    return sum(view.nbytes for view in row_tensors(module).values())

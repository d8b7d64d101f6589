"""The key-value ring of one attention layer: a window of ``capacity`` positions in explicit state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import PackedStep, Run, Step

PAGE_SLOTS = 64
"""Slots of a page of INT8 values: those of a tile of the attention's kernel."""


@dataclass(frozen=True, slots=True)
class RingView:
    """A ring as it is kept, for all rows: ``k``, ``v`` ``[S, H, capacity, D]``.

    Of an INT8 ring, ``v`` is ``[S, H, pages, D, PAGE_SLOTS]``, and ``k_scale`` and ``v_scale`` are float32
    ``[S, H, capacity]``; else they are None.
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KVRing:
    """Names and shapes of one layer's ring.

    State, row first: ``{name}.k`` and ``{name}.v`` ``[H, capacity, D]`` in ``dtype``; position p lives
    in slot ``p mod capacity``. The state tensor ``position`` counts them. With ``int8`` they are int8 and
    ``{name}.k_scale``, ``{name}.v_scale`` ``[H, capacity]`` float32 hold one scale per token and head,
    computed when the token is written:
    a scale fixed in advance fails on audio, whose keys have far outliers. INT8 values lie in pages,
    ``{name}.v`` ``[H, pages, D, PAGE_SLOTS]``: integer matrix units want what is added up side by side, of
    keys the width of a head, of values the slots.
    """

    name: str
    heads: int
    capacity: int
    head_dim: int
    dtype: torch.dtype
    position: str
    int8: bool = False

    def specs(self) -> Iterator[TensorSpec]:
        """The state this ring keeps."""
        dtype = torch.int8 if self.int8 else self.dtype
        for part in ("k", "v"):
            shape: tuple[int, ...] = (self.heads, self.capacity, self.head_dim)
            name, at, page = f"{self.name}.{part}", self.position, 1
            if self.int8:
                yield TensorSpec(f"{name}_scale", shape[:2], torch.float32, is_kept=True, position=at)
            if self.int8 and part == "v":
                page = PAGE_SLOTS
                shape = (self.heads, -(-self.capacity // page), self.head_dim, page)
            yield TensorSpec(name, shape, dtype, is_kept=True, position=at, page_slots=page)

    def write(self, step: Step, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` ``[n, H, T, D]`` at ``slots [n, T]`` (no slot twice in a row)."""
        for part, values in (("k", k), ("v", v)):
            if self.int8:
                values, scale = quantize_tokens(values)
                step.write_slots(f"{self.name}.{part}_scale", slots, scale)
            step.write_slots(f"{self.name}.{part}", slots, values)

    def read(self, step: Step, run: Run | None, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` slots of the rows of a run as ``[count, H, length, D]`` in ``dtype``."""
        return self._read_part(step, run, "k", length), self._read_part(step, run, "v", length)

    def view(self, step: PackedStep) -> RingView:
        """The ring of all rows, nothing of it converted or copied."""
        names = ("k", "v", "k_scale", "v_scale") if self.int8 else ("k", "v")
        return RingView(*(step.whole(f"{self.name}.{part}") for part in names))

    def _read_part(self, step: Step, run: Run | None, part: str, length: int) -> Tensor:
        values = step.ring(f"{self.name}.{part}", run)
        if self.int8 and part == "v":
            values = values[:, :, : -(-length // PAGE_SLOTS)].transpose(-1, -2).flatten(2, 3)
        values = values[:, :, :length]
        if not self.int8:
            return values
        scale = step.ring(f"{self.name}.{part}_scale", run)[:, :, :length, None]
        return (values.float() * scale).to(self.dtype)


def quantize_tokens(values: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric INT8 over the last axis: ``[..., D]`` to int8 ``[..., D]`` and float32 scales ``[...]``."""
    wide = values.float()
    scale = wide.abs().amax(dim=-1).clamp_min(1e-12) / 127.0
    return torch.round(wide / scale[..., None]).clamp(-127, 127).to(torch.int8), scale

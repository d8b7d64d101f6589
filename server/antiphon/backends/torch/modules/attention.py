"""Attention of the streaming transformer: to a ring of its own past, and to a voice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.kv import KVRing
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.rope import Rotation
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Run, Step
from antiphon.models.architecture import TransformerConfig

VOICE_PARTS = ("cross_k", "cross_v")
"""What a layer keeps of a voice."""

LARGEST = 1e15
"""Bound on queries, keys and values: no score overflows, so what an attention's mask hides weighs nothing.
Without it, the NaN a session left in its row's ring would come back through a weight of zero."""


@dataclass(frozen=True, slots=True)
class Compute:
    """How a network computes: ``dtype`` is that of weights and activations.

    Attention runs in ``kv_dtype``, in which the ring is kept too; None is ``dtype``. ``attention`` says by
    what, for one frame at a time: see :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    """

    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    int8_kv: bool = False
    attention: str = "torch"

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype of queries, keys and values."""
        return self.kv_dtype or self.dtype


PLAIN: Final = Compute()
"""All in float32, by torch's own operations."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows of a run may see: ``mask`` bool ``[count, 1, T, keys]`` over ``length`` ring slots."""

    run: Run | None
    mask: Tensor
    length: int


@dataclass(frozen=True, slots=True)
class Window:
    """What all layers share in one forward pass by torch's own operations.

    ``slots [n, W]``: where its last W positions go. ``wide``: attend to the ring as it was plus this pass's
    own keys (several frames at once), instead of writing first and reading the ring only (one frame).
    """

    slots: Tensor
    looks: tuple[Look, ...]
    wide: bool
    rotation: Rotation | None


def attend_by_runs(q: Tensor, runs: Sequence[Run | None], attend: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Attention run by run, ``[n, H, T, D]`` to the same; places that are in no run get zeros.

    ``attend`` takes the queries of a run, and its number.
    """
    if len(runs) == 1 and (runs[0] is None or runs[0].count == q.shape[0]):
        return attend(q, 0)
    out = torch.zeros_like(q)
    for number, run in enumerate(runs):
        assert run is not None
        out[run.places] = attend(q[run.places], number)
    return out


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """``[n, T, H * D]`` to ``[n, H, T, D]``."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x: Tensor, out_proj: nn.Module) -> Tensor:
    """``[n, H, T, D]`` through the output projection: ``[n, T, dim]``."""
    out: Tensor = out_proj(x.transpose(1, 2).flatten(2))
    return out


class SelfAttention(nn.Module):
    """Causal attention over a KV ring. Weights: ``in_proj`` (q, k, v stacked) and ``out_proj``."""

    def __init__(self, name: str, config: TransformerConfig, compute: Compute = PLAIN) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.config, self.compute = config, compute
        self.in_proj = Linear(config.dim, config.dim + 2 * config.kv_dim, dtype=compute.dtype)
        self.out_proj = Linear(config.dim, config.dim, dtype=compute.dtype)
        self.ring = KVRing(
            name,
            config.kv_heads,
            config.context,
            config.head_dim,
            compute.attention_dtype,
            f"{name.rpartition('.')[0]}.position",
            int8=compute.int8_kv,
        )

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """``[n, T, dim]`` to the same."""
        config, dtype = self.config, self.compute.attention_dtype
        projected = self.in_proj(x)
        if step.in_place:  # where a reset hides rings instead of erasing them; in pure functions it erases
            projected = projected.nan_to_num_(nan=0.0).clamp_(-LARGEST, LARGEST)
        parts = projected.split([config.dim, config.kv_dim, config.kv_dim], dim=-1)
        q, k, v = (split_heads(part.to(dtype), config.head_dim) for part in parts)
        if window.rotation is not None:
            q, k = window.rotation.apply(q), window.rotation.apply(k)
        return merge_heads(self._attend(q, k, v, step, window).to(x.dtype), self.out_proj)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step, window: Window) -> Tensor:
        """Write this pass's keys and values, then look: ``[n, H, T, D]`` to the same."""
        is_shared, written = self.config.kv_repeat > 1, window.slots.shape[1]
        looks = window.looks

        def attend(queries: Tensor, number: int) -> Tensor:
            look = looks[number]
            keys, values = self.ring.read(step, look.run, look.length)
            if window.wide:
                places = slice(None) if look.run is None else look.run.places
                keys, values = torch.cat([keys, k[places]], dim=2), torch.cat([values, v[places]], dim=2)
            return functional.scaled_dot_product_attention(
                queries, keys, values, look.mask, enable_gqa=is_shared
            )

        if not window.wide:
            self.ring.write(step, window.slots, k, v)
        out = attend_by_runs(q, [look.run for look in looks], attend)
        if window.wide:
            self.ring.write(step, window.slots, k[:, :, -written:], v[:, :, -written:])
        return out


class CrossAttention(nn.Module):
    """Attention to a fixed source, whose keys and values are state (a voice is computed once).

    State, row first: ``{name}.cross_k`` and ``{name}.cross_v`` ``[H, cross_positions, D]``.
    """

    def __init__(self, name: str, config: TransformerConfig, compute: Compute = PLAIN) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.name, self.config, self.dtype = name, config, compute.dtype
        self.in_proj = Linear(config.dim, 3 * config.dim, dtype=compute.dtype)
        self.out_proj = Linear(config.dim, config.dim, dtype=compute.dtype)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        shape = (self.config.heads, self.config.cross_positions, self.config.head_dim)
        for part in VOICE_PARTS:
            yield TensorSpec(f"{self.name}.{part}", shape, self.dtype, is_kept=True)

    def project_source(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[1, H, P, D]`` of a source ``[1, P, dim]``."""
        _, k, v = self.in_proj(source).chunk(3, dim=-1)
        return split_heads(k, self.config.head_dim), split_heads(v, self.config.head_dim)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, T, dim]`` to the same."""
        q = split_heads(self.in_proj(x).chunk(3, dim=-1)[0], self.config.head_dim)
        runs = step.runs

        def attend(queries: Tensor, number: int) -> Tensor:
            k, v = (step.ring(f"{self.name}.{part}", runs[number]) for part in VOICE_PARTS)
            return functional.scaled_dot_product_attention(queries, k, v)

        return merge_heads(attend_by_runs(q, runs, attend), self.out_proj)

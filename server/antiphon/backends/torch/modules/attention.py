"""Attention over a ring of past keys and values, attention to a voice, and the layers of both
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.kv_forms import (
    MOST,
    KVForm,
    pack_halves,
    quantize_tokens,
    unpack_halves,
)
from antiphon.backends.torch.modules.layers import (
    GatedFeedForward,
    LayerNorm,
    Linear,
    Rotation,
    TokenEmbedding,
    make_feed_forward,
    make_norm,
    make_scale,
)
from antiphon.backends.torch.state import PackedStep, Run, Step
from antiphon.models.architecture import DepformerConfig, TransformerConfig


@dataclass(frozen=True, slots=True)
class RingView:
    """The ring of all rows: ``k``, ``v`` ``[S, H, capacity, D]``.

    If ``pages`` is a table, int32 ``[S, pages of a row]``, then ``k`` and ``v`` consist of pages, ``[pages,
    H, PAGE_SLOTS, D]``. A rounded ring always has pages. Its ``v`` is ``[pages, H, D, PAGE_SLOTS]``; its
    ``k_scale`` and ``v_scale`` are float32 ``[pages, H, PAGE_SLOTS]``, and None for other rings. Packed forms
    have D / 2 in place of D.
    """

    k: Tensor
    v: Tensor
    capacity: int
    form: KVForm = KVForm.COMPUTE
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    pages: Tensor | None = None


@dataclass(frozen=True, slots=True)
class KVRing:
    """Names and shapes of one layer's ring.

    State, row first: ``{name}.k`` and ``{name}.v`` ``[H, capacity, D]`` in ``dtype``; position p is in slot
    ``p mod capacity``. The state tensor ``position`` is the number of positions written. If ``form`` rounds
    keys and values, they are int8, and ``{name}.k_scale``, ``{name}.v_scale`` ``[H, capacity]`` float32 are
    one scale per token and head, computed when the token is written: a scale fixed in advance fails on audio,
    whose keys have far outliers. Rounded values are in pages, ``{name}.v`` ``[H, pages, D, PAGE_SLOTS]``:
    integer matrix units need the summed axis to be contiguous, which is a head's width for keys, and the
    slots for values. In INT4 a byte has elements d and d + D / 2, so D is halved and each token has its own
    bytes.
    """

    name: str
    heads: int
    capacity: int
    head_dim: int
    dtype: torch.dtype
    position: str
    form: KVForm = KVForm.COMPUTE

    def specs(self) -> Iterator[TensorSpec]:
        """The state this ring keeps."""
        dtype = torch.int8 if self.form.is_rounded else self.dtype
        for part in ("k", "v"):
            width = self.form.width(part, self.head_dim)
            shape: tuple[int, ...] = (self.heads, self.capacity, width)
            name, at, page = f"{self.name}.{part}", self.position, 1
            if self.form.is_rounded:
                yield TensorSpec(f"{name}_scale", shape[:2], torch.float32, is_kept=True, position=at)
            if self.form.is_rounded and part == "v":
                page = PAGE_SLOTS
                shape = (self.heads, -(-self.capacity // page), width, page)
            yield TensorSpec(name, shape, dtype, is_kept=True, position=at, page_slots=page)

    def write(self, step: Step, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` ``[n, H, T, D]`` at ``slots [n, T]`` (different slots within a row)."""
        for part, values in (("k", k), ("v", v)):
            if self.form.is_rounded:
                is_packed = self.form.is_packed(part)
                values, scale = quantize_tokens(values, MOST[is_packed])
                values = pack_halves(values) if is_packed else values
                step.write_slots(f"{self.name}.{part}_scale", slots, scale)
            step.write_slots(f"{self.name}.{part}", slots, values)

    def read(self, step: Step, run: Run | None, length: int) -> tuple[Tensor, Tensor]:
        """The first ``length`` slots of the rows of a run as ``[count, H, length, D]`` in ``dtype``."""
        return self.read_part(step, run, "k", length), self.read_part(step, run, "v", length)

    def view(self, step: PackedStep) -> RingView:
        """A view of the ring of all rows, without conversion or copies."""
        k, v = (step.whole(f"{self.name}.{part}") for part in ("k", "v"))
        pages = step.pages(f"{self.name}.k")
        if not self.form.is_rounded:
            return RingView(k, v, self.capacity, pages=pages)
        k_scale, v_scale = (step.whole(f"{self.name}.{part}_scale") for part in ("k", "v"))
        return RingView(k, v, self.capacity, self.form, k_scale, v_scale, pages)

    def read_part(self, step: Step, run: Run | None, part: str, length: int) -> Tensor:
        """The keys ("k") or values ("v") of :meth:`read`."""
        values = step.ring(f"{self.name}.{part}", run, length)
        if self.form.is_rounded and part == "v":
            values = values[:, :, : -(-length // PAGE_SLOTS)].transpose(-1, -2).flatten(2, 3)
        values = values[:, :, :length]
        if not self.form.is_rounded:
            return values
        if self.form.is_packed(part):
            values = unpack_halves(values)
        scale = step.ring(f"{self.name}.{part}_scale", run, length)[:, :, :length, None]
        return (values.float() * scale).to(self.dtype)


VOICE_PARTS = ("cross_k", "cross_v")
"""A layer's state of a voice."""


LARGEST = 1e15
"""Limit on queries, keys and values: below it no score overflows, so masked positions have weight 0. Without
this limit, a session's NaN in its row's ring would propagate through a weight of zero.
"""


@dataclass(frozen=True, slots=True)
class Compute:
    """The arithmetic of a network: ``dtype`` is the dtype of weights and activations.

    Attention runs in ``kv_dtype``, the dtype of the ring; None means ``dtype``. ``attention`` chooses the
    implementation of attention, for one frame at a time: see
    :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    """

    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    kv: KVForm = KVForm.COMPUTE
    attention: str = "torch"

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype of queries, keys and values."""
        return self.kv_dtype or self.dtype


PLAIN: Final = Compute()
"""All in float32, with torch's own operations."""


@dataclass(frozen=True, slots=True)
class Look:
    """The positions that a run may read: ``mask`` bool ``[count, 1, T, keys]`` over ``length`` ring slots."""

    run: Run | None
    mask: Tensor
    length: int


@dataclass(frozen=True, slots=True)
class Window:
    """The values that all layers share in one forward pass with torch's own operations.

    ``slots [n, W]``: the slots of the pass's last W positions. ``wide`` is for several frames at once:
    attention reads the old ring plus this pass's keys. Otherwise (one frame) the keys are written first, and
    attention reads only the ring.
    """

    slots: Tensor
    looks: tuple[Look, ...]
    wide: bool
    rotation: Rotation | None


def attend_by_runs(q: Tensor, runs: Sequence[Run | None], attend: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Compute attention run by run, ``[n, H, T, D]`` to the same shape; places outside of all runs get zeros.

    ``attend`` gets the queries of a run, and its number.
    """
    if len(runs) == 1 and (runs[0] is None or runs[0].count == q.shape[0]):
        return attend(q, 0)
    out = torch.zeros_like(q)
    for number, run in enumerate(runs):
        assert run is not None
        out[run.places] = attend(q[run.places], number)
    return out


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Map ``[n, T, H * D]`` to ``[n, H, T, D]``."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def merge_heads(x: Tensor, out_proj: nn.Module) -> Tensor:
    """Apply the output projection to ``[n, H, T, D]``: ``[n, T, dim]``."""
    out: Tensor = out_proj(x.transpose(1, 2).flatten(2))
    return out


class SelfAttention(nn.Module):
    """Causal attention over a KV ring. Weights: ``in_proj`` (q, k, v stacked) and ``out_proj``."""

    def __init__(self, name: str, config: TransformerConfig, compute: Compute = PLAIN) -> None:
        """Make the layer without weights, which are loaded later."""
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
            compute.kv,
        )

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape."""
        config, dtype = self.config, self.compute.attention_dtype
        projected = self.in_proj(x)
        if step.in_place:  # for resets that hide rings instead of erasing them; pure functions erase
            projected = projected.nan_to_num_(nan=0.0).clamp_(-LARGEST, LARGEST)
        parts = projected.split([config.dim, config.kv_dim, config.kv_dim], dim=-1)
        q, k, v = (split_heads(part.to(dtype), config.head_dim) for part in parts)
        if window.rotation is not None:
            q, k = window.rotation.apply(q), window.rotation.apply(k)
        return merge_heads(self._attend(q, k, v, step, window).to(x.dtype), self.out_proj)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step, window: Window) -> Tensor:
        """Write this pass's keys and values, then attend: ``[n, H, T, D]`` to the same."""
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
        """Make the layer without weights, which are loaded later."""
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
        """Map ``[n, T, dim]`` to the same shape."""
        q = split_heads(self.in_proj(x).chunk(3, dim=-1)[0], self.config.head_dim)
        runs = step.runs

        def attend(queries: Tensor, number: int) -> Tensor:
            k, v = (step.ring(f"{self.name}.{part}", runs[number], 0) for part in VOICE_PARTS)
            return functional.scaled_dot_product_attention(queries, k, v)

        return merge_heads(attend_by_runs(q, runs, attend), self.out_proj)


class TransformerLayer(nn.Module):
    """A transformer layer: self-attention, cross-attention where configured, and a feed-forward block, each
    with a norm before it and added to its input.
    """

    def __init__(self, name: str, config: TransformerConfig, compute: Compute) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        dim, dtype = config.dim, compute.dtype
        self.self_attn = SelfAttention(name, config, compute)
        self.norm1 = make_norm(config.norm, dim, dtype)
        self.norm2 = make_norm(config.norm, dim, dtype)
        self.feed_forward = make_feed_forward(config.gating, dim, config.feed_forward, dtype)
        self.cross_attention: CrossAttention | None = None
        if config.cross_positions:
            self.cross_attention = CrossAttention(name, config, compute)
            self.norm_cross = LayerNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
            self.layer_scale_cross = make_scale(dim, dtype, wanted=config.layer_scale)
        self.layer_scale_1 = make_scale(dim, dtype, wanted=config.layer_scale)
        self.layer_scale_2 = make_scale(dim, dtype, wanted=config.layer_scale)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield from self.self_attn.ring.specs()
        if self.cross_attention is not None:
            yield from self.cross_attention.specs()

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape."""
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x), step, window))
        if self.cross_attention is not None:
            x = x + self.layer_scale_cross(self.cross_attention(self.norm_cross(x), step))
        out: Tensor = x + self.layer_scale_2(self.feed_forward(self.norm2(x)))
        return out


Chooser = Callable[[int, Tensor], Tensor]
"""Called with (step, logits ``[n, card]``), returns the tokens int64 ``[n]``."""


Past = tuple[Tensor, Tensor]


class DepformerLayer(nn.Module):
    """One layer of a depformer, with ``sets`` sets of projections and feed-forwards, and common norms."""

    def __init__(self, config: DepformerConfig, dtype: torch.dtype) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.dim, self.kv_dim, self.head_dim = config.dim, config.kv_dim, config.head_dim
        out_dim = config.dim + 2 * config.kv_dim
        self.in_projs = nn.ModuleList(Linear(config.dim, out_dim, dtype=dtype) for _ in range(config.sets))
        self.out_projs = nn.ModuleList(
            Linear(config.dim, config.dim, dtype=dtype) for _ in range(config.sets)
        )
        self.gating = nn.ModuleList(
            GatedFeedForward(config.gating, config.dim, width, dtype) for width in config.feed_forward
        )
        self.norm1 = make_norm(config.norm, config.dim, dtype)
        self.norm2 = make_norm(config.norm, config.dim, dtype)
        self.layer_scale_1 = make_scale(config.dim, dtype, wanted=config.layer_scale)
        self.layer_scale_2 = make_scale(config.dim, dtype, wanted=config.layer_scale)

    def forward(self, x: Tensor, which: int, past: Past | None) -> tuple[Tensor, Past]:
        """Map ``[n, 1, dim]`` and the keys and values of the earlier steps to the same, with this step's
        added.
        """
        projected = self.in_projs[which](self.norm1(x))
        parts = projected.split([self.dim, self.kv_dim, self.kv_dim], dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.kv_dim < self.dim)
        x = x + self.layer_scale_1(merge_heads(out, self.out_projs[which]))
        return x + self.layer_scale_2(self.gating[which](self.norm2(x))), (k, v)


class DepformerParts(nn.Module):
    """The weights of a depformer: the inputs of a step, its layers, and its head."""

    def __init__(self, config: DepformerConfig, compute: Compute = PLAIN) -> None:
        """Make the parts without weights, which are loaded later."""
        super().__init__()
        self.config, self.dtype = config, compute.dtype
        dim, dtype, steps = config.dim, compute.dtype, config.steps
        inputs = config.sets if config.multi_linear else 1
        self.inputs = nn.ModuleList(Linear(config.hidden_dim, dim, dtype=dtype) for _ in range(inputs))
        self.text_emb = TokenEmbedding(
            config.text_card + 1, dim, dtype, low_rank=config.low_rank, demux=config.demux
        )
        self.emb = nn.ModuleList(
            TokenEmbedding(config.card + 1, dim, dtype, low_rank=config.low_rank) for _ in range(steps - 1)
        )
        self.layers = nn.ModuleList(DepformerLayer(config, dtype) for _ in range(config.layers))
        self.norms = nn.ModuleList(
            make_norm(config.output_norm, dim, dtype) if config.output_norm else nn.Identity()
            for _ in range(steps)
        )
        self.linears = nn.ModuleList(
            Linear(dim, config.card, bias=config.bias, dtype=dtype) for _ in range(steps)
        )
        self.joined_inputs: Tensor | None = None

"""The streaming transformer of Mimi and of the language model, with its KV rings in explicit state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.kernels.fused import is_fused, load_decode_attention, load_steps
from antiphon.backends.torch.modules.feedforward import make_feed_forward
from antiphon.backends.torch.modules.kv import KVRing
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.norms import LayerNorm, LayerScale, make_norm
from antiphon.backends.torch.modules.rope import Rotation, rotation
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import PackedStep, Run, Step

VOICE_PARTS = ("cross_k", "cross_v")
"""What a layer keeps of a voice."""

LARGEST = 1e15
"""Bound on queries, keys and values: no score overflows, so what an attention's mask hides weighs nothing.
Without it, the NaN a session left in its row's ring would come back through a weight of zero."""


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of a streaming transformer.

    ``context`` is the window in positions, and the ring's capacity. ``frame_positions`` is how many
    positions one frame brings (1 for the language model, 2 for Mimi). ``cross_positions`` is the length
    of the cross-attention source, 0 for none. ``rope`` is "rope" (interleaved pairs), "rope_concat"
    (halves) or "none". Attention runs in ``kv_dtype``, in which the ring is kept too; None is ``dtype``.
    ``attention`` says by what, for one frame at a time: see
    :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    """

    dim: int
    heads: int
    layers: int
    context: int
    feed_forward: int
    kv_repeat: int = 1
    frame_positions: int = 1
    gating: str = "none"
    norm: str = "layer_norm"
    rope: str = "rope"
    max_period: float = 10000.0
    layer_scale: bool = False
    cross_attention: bool = False
    cross_positions: int = 0
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    int8_kv: bool = False
    attention: str = "torch"

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype of queries, keys and values."""
        return self.kv_dtype or self.dtype

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; queries share them in groups (GQA) when fewer than ``heads``."""
        return self.heads // self.kv_repeat


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows of a run may see: ``mask`` bool ``[count, 1, T, keys]`` over ``length`` ring slots."""

    run: Run | None
    mask: Tensor
    length: int


@dataclass(frozen=True, slots=True)
class Window:
    """What all layers share in one forward pass.

    ``first`` int64 ``[n]``: the position of this pass's first query. ``slots [n, W]``: where its last W
    positions go. ``looks``: None where the attention is fused, which reads up to ``length`` ring slots.
    ``wide``: attend to the ring as it was plus this pass's own keys (several frames at once), instead of
    writing first and reading the ring only (one frame).
    """

    first: Tensor
    slots: Tensor
    looks: tuple[Look, ...] | None
    length: int
    wide: bool
    rotation: Rotation | None


def _ring_positions(last: Tensor, length: int, capacity: int) -> Tensor:
    """Position held by each of the first ``length`` slots, ``[n, length]``; negative where nothing is."""
    slots = torch.arange(length, device=last.device)
    return last[:, None] - torch.remainder(last[:, None] - slots, capacity)


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

    def __init__(self, name: str, config: TransformerConfig) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.config = config
        kv_dim = config.kv_heads * config.head_dim
        self.in_proj = Linear(config.dim, config.dim + 2 * kv_dim, dtype=config.dtype)
        self.out_proj = Linear(config.dim, config.dim, dtype=config.dtype)
        self.ring = KVRing(
            name,
            config.kv_heads,
            config.context,
            config.head_dim,
            config.attention_dtype,
            f"{name.rpartition('.')[0]}.position",
            int8=config.int8_kv,
        )

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """``[n, T, dim]`` to the same."""
        config = self.config
        kv_dim = config.kv_heads * config.head_dim
        projected = self.in_proj(x)
        if step.in_place:  # where a reset hides rings instead of erasing them; in pure functions it erases
            projected = projected.nan_to_num_(nan=0.0).clamp_(-LARGEST, LARGEST)
        parts = projected.split([config.dim, kv_dim, kv_dim], dim=-1)
        q, k, v = (split_heads(part.to(config.attention_dtype), config.head_dim) for part in parts)
        if window.rotation is not None:
            q, k = window.rotation.apply(q), window.rotation.apply(k)
        return merge_heads(self._attend(q, k, v, step, window).to(x.dtype), self.out_proj)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step, window: Window) -> Tensor:
        """Write this pass's keys and values, then look: ``[n, H, T, D]`` to the same."""
        is_shared, written = self.config.kv_repeat > 1, window.slots.shape[1]

        looks = window.looks

        def attend(queries: Tensor, number: int) -> Tensor:
            assert looks is not None
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
        if looks is None:
            assert isinstance(step, PackedStep)
            decode = load_decode_attention()
            return decode(q, self.ring.view(step), window.first, step.rows, window.length)
        out = attend_by_runs(q, [look.run for look in looks], attend)
        if window.wide:
            self.ring.write(step, window.slots, k[:, :, -written:], v[:, :, -written:])
        return out


class CrossAttention(nn.Module):
    """Attention to a fixed source, whose keys and values are state (a voice is computed once).

    State, row first: ``{name}.cross_k`` and ``{name}.cross_v`` ``[H, cross_positions, D]``.
    """

    def __init__(self, name: str, config: TransformerConfig) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.name, self.config = name, config
        self.in_proj = Linear(config.dim, 3 * config.dim, dtype=config.dtype)
        self.out_proj = Linear(config.dim, config.dim, dtype=config.dtype)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        shape = (self.config.heads, self.config.cross_positions, self.config.head_dim)
        for part in VOICE_PARTS:
            yield TensorSpec(f"{self.name}.{part}", shape, self.config.dtype, is_kept=True)

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


def _layer_scale(config: TransformerConfig) -> nn.Module:
    return LayerScale(config.dim, config.dtype) if config.layer_scale else nn.Identity()


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where configured, feed-forward; each normed first and added."""

    def __init__(self, name: str, config: TransformerConfig) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.self_attn = SelfAttention(name, config)
        self.norm1 = make_norm(config.norm, config.dim, config.dtype)
        self.norm2 = make_norm(config.norm, config.dim, config.dtype)
        self.feed_forward = make_feed_forward(config.gating, config.dim, config.feed_forward, config.dtype)
        self.cross_attention: CrossAttention | None = None
        if config.cross_attention:
            self.cross_attention = CrossAttention(name, config)
            self.norm_cross = LayerNorm(config.dim, eps=1e-5, in_float32=False, dtype=config.dtype)
            self.layer_scale_cross = _layer_scale(config)
        self.layer_scale_1 = _layer_scale(config)
        self.layer_scale_2 = _layer_scale(config)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield from self.self_attn.ring.specs()
        if self.cross_attention is not None:
            yield from self.cross_attention.specs()

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """``[n, T, dim]`` to the same."""
        if window.looks is None and x.shape[1] == 1:
            fused: Tensor = load_steps().layer_step(self, x, step, window)
            return fused
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x), step, window))
        if self.cross_attention is not None:
            x = x + self.layer_scale_cross(self.cross_attention(self.norm_cross(x), step))
        out: Tensor = x + self.layer_scale_2(self.feed_forward(self.norm2(x)))
        return out


class StreamingTransformer(nn.Module):
    """Layers over a common position counter. State ``{name}.position`` int64: positions seen."""

    def __init__(self, name: str, config: TransformerConfig) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.name, self.config = name, config
        self.layers = nn.ModuleList(TransformerLayer(f"{name}.{i}", config) for i in range(config.layers))

    def specs(self) -> Iterator[TensorSpec]:
        """The state this transformer keeps."""
        yield TensorSpec(f"{self.name}.position", (), torch.int64)
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            yield from layer.specs()

    def _window(self, positions: Tensor, step: Step) -> Window:
        config, (_, count) = self.config, positions.shape
        capacity = config.context
        wide = count > config.frame_positions
        turn = None
        if config.rope != "none":
            turn = rotation(positions, config.head_dim, config.max_period, interleaved=config.rope == "rope")
        slots = torch.remainder(positions[:, -min(count, capacity) :], capacity)
        if not wide and step.in_place and is_fused(config.attention, positions.device, config.head_dim):
            length = self._length(step.filled)
            return Window(positions[:, 0].contiguous(), slots, None, length, wide, turn)
        looks = tuple(self._look(positions, run, wide=wide) for run in step.runs)
        return Window(positions[:, 0], slots, looks, config.context, wide, turn)

    def _length(self, filled: int | None) -> int:
        """Ring slots that hold what so many frames brought."""
        config = self.config
        return config.context if filled is None else min(filled * config.frame_positions, config.context)

    def _look(self, positions: Tensor, run: Run | None, *, wide: bool) -> Look:
        config, capacity, length = self.config, self.config.context, self.config.context
        if run is not None:
            positions, length = positions[run.places], self._length(run.filled)
        if wide:
            old = _ring_positions(positions[:, 0] - 1, length, capacity)
            keys = torch.cat([old, positions], dim=1)
            frame = config.frame_positions
            frame_end = torch.div(positions, frame, rounding_mode="floor") * frame + frame - 1
            inside = keys[:, None] > frame_end[:, :, None] - capacity
        else:
            keys = _ring_positions(positions[:, -1], length, capacity)
            inside = torch.ones((), dtype=torch.bool, device=positions.device)
        mask = (keys[:, None] >= 0) & (keys[:, None] <= positions[:, :, None]) & inside
        return Look(run, mask[:, None], length)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, T, dim]`` to the same, T being one frame's positions or several frames'."""
        position = step.read(f"{self.name}.position")
        count = x.shape[1]
        positions = position[:, None] + torch.arange(count, device=x.device)
        window = self._window(positions, step)
        for layer in self.layers:
            x = layer(x, step, window)
        step.write(f"{self.name}.position", position + count)
        return x

    def voice(self, sources: Tensor) -> dict[str, Tensor]:
        """A row's state from its cross-attention sources ``[sequences, cross_positions, dim]``."""
        found: dict[str, Tensor] = {}
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            cross = layer.cross_attention
            if cross is not None:
                parts = cross.project_source(sources.to(self.config.dtype))
                for part, tensor in zip(VOICE_PARTS, parts, strict=True):
                    found[f"{cross.name}.{part}"] = tensor.squeeze(0)
        return found

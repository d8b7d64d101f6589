"""The streaming transformer of Mimi and of the language model, with its KV rings in explicit state."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from antiphon.backends.torch.kernels.fused import is_fused, load_steps
from antiphon.backends.torch.modules.attention import (
    PLAIN,
    VOICE_PARTS,
    Compute,
    CrossAttention,
    Look,
    SelfAttention,
    Window,
)
from antiphon.backends.torch.modules.feedforward import make_feed_forward
from antiphon.backends.torch.modules.norms import LayerNorm, make_norm, make_scale
from antiphon.backends.torch.modules.rope import rotation
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Run, Step
from antiphon.models.architecture import TransformerConfig


def _ring_positions(last: Tensor, length: int, capacity: int) -> Tensor:
    """Position held by each of the first ``length`` slots, ``[n, length]``; negative where nothing is."""
    slots = torch.arange(length, device=last.device)
    return last[:, None] - torch.remainder(last[:, None] - slots, capacity)


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where configured, feed-forward; each normed first and added."""

    def __init__(self, name: str, config: TransformerConfig, compute: Compute) -> None:
        """Shape the layer; its weights come with the checkpoint."""
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

    def __init__(self, name: str, config: TransformerConfig, compute: Compute = PLAIN) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.name, self.config, self.compute = name, config, compute
        self.layers = nn.ModuleList(
            TransformerLayer(f"{name}.{i}", config, compute) for i in range(config.layers)
        )

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
        if not wide and step.in_place and self.is_fused(positions.device):
            length = self._length(step.filled)
            return Window(positions[:, 0].contiguous(), slots, None, length, wide, turn)
        looks = tuple(self._look(positions, run, wide=wide) for run in step.runs)
        return Window(positions[:, 0], slots, looks, config.context, wide, turn)

    def is_fused(self, device: torch.device) -> bool:
        """Whether its attention to one frame runs by Triton kernels there."""
        return is_fused(self.compute.attention, device, self.config.head_dim)

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
                parts = cross.project_source(sources.to(self.compute.dtype))
                for part, tensor in zip(VOICE_PARTS, parts, strict=True):
                    found[f"{cross.name}.{part}"] = tensor.squeeze(0)
        return found

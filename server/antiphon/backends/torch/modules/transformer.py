"""The streaming transformer of Mimi and of the language model; it determines which part of the ring each
frame sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor, nn

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.kernels.fused import is_fused
from antiphon.backends.torch.modules.attention import (
    PLAIN,
    VOICE_PARTS,
    Compute,
    Look,
    TransformerLayer,
    Window,
)
from antiphon.backends.torch.modules.layers import (
    rotation,
)
from antiphon.backends.torch.state import Run, Step
from antiphon.models.architecture import TransformerConfig


def load_steps() -> ModuleType:
    """Import and return :mod:`antiphon.backends.torch.kernels.steps`."""
    from antiphon.backends.torch.kernels import steps

    return steps


def ring_positions(last: Tensor, length: int, capacity: int) -> Tensor:
    """The position stored in each of the first ``length`` slots, ``[n, length]``; negative for an empty
    slot.
    """
    slots = torch.arange(length, device=last.device)
    return last[:, None] - torch.remainder(last[:, None] - slots, capacity)


class StreamingTransformer(nn.Module):
    """Transformer layers that share a position counter. State ``{name}.position`` int64: positions seen."""

    def __init__(self, name: str, config: TransformerConfig, compute: Compute = PLAIN) -> None:
        """Make the transformer without weights, which are loaded later."""
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
        looks = tuple(self._look(positions, run, wide=wide) for run in step.runs)
        return Window(slots, looks, wide, turn)

    def is_fused(self, device: torch.device) -> bool:
        """Whether its attention to one frame runs on Triton kernels on that device."""
        return is_fused(self.compute.attention, device, self.config.head_dim, self.compute.kv)

    def _length(self, filled: int | None) -> int:
        """Ring slots in use after ``filled`` frames."""
        config = self.config
        return config.context if filled is None else min(filled * config.frame_positions, config.context)

    def _look(self, positions: Tensor, run: Run | None, *, wide: bool) -> Look:
        config, capacity, length = self.config, self.config.context, self.config.context
        if run is not None:
            positions, length = positions[run.places], self._length(run.filled)
        if wide:
            old = ring_positions(positions[:, 0] - 1, length, capacity)
            keys = torch.cat([old, positions], dim=1)
            frame = config.frame_positions
            frame_end = torch.div(positions, frame, rounding_mode="floor") * frame + frame - 1
            inside = keys[:, None] > frame_end[:, :, None] - capacity
        else:
            keys = ring_positions(positions[:, -1], length, capacity)
            inside = torch.ones((), dtype=torch.bool, device=positions.device)
        mask = (keys[:, None] >= 0) & (keys[:, None] <= positions[:, :, None]) & inside
        return Look(run, mask[:, None], length)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape; T is the number of positions of one frame or of several
        frames.
        """
        count = x.shape[1]
        if step.in_place and count <= self.config.frame_positions and self.is_fused(x.device):
            return self._frame(x, step)
        position = step.read(f"{self.name}.position")
        positions = position[:, None]
        if count > 1:
            positions = positions + torch.arange(count, device=x.device)
        window = self._window(positions, step)
        for layer in self.layers:
            x = layer(x, step, window)
        step.write(f"{self.name}.position", position + count)
        return x

    def _frame(self, x: Tensor, step: Step) -> Tensor:
        """One frame's positions by Triton kernels."""
        steps, length = load_steps(), self._length(step.filled)
        window = steps.open_window(self.name, self.config, self.compute, step, x.shape[1], length)
        for layer in self.layers:
            x = steps.layer_step(layer, x, step, window)
        return x

    def voice(self, sources: Tensor) -> dict[str, Tensor]:
        """Compute the voice part of a row's state from its cross-attention sources ``[sequences,
        cross_positions, dim]``.
        """
        found: dict[str, Tensor] = {}
        for layer in self.layers:
            assert isinstance(layer, TransformerLayer)
            cross = layer.cross_attention
            if cross is not None:
                parts = cross.project_source(sources.to(self.compute.dtype))
                for part, tensor in zip(VOICE_PARTS, parts, strict=True):
                    found[f"{cross.name}.{part}"] = tensor.squeeze(0)
        return found

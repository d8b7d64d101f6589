"""The voice of a tts model as a graph of its own: what a row looks at is computed once, not in every step.

In the published weights one matrix makes queries, keys and values of cross-attention. The step needs the
first third of it, a voice the rest: each graph has its own part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.attention import CrossAttention, merge_heads, split_heads
from antiphon.backends.torch.modules.layer import TransformerLayer
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.step import Step
from antiphon.backends.torch.weights.conditions import Conditions
from antiphon.models.speaker import MAX_SPEAKERS
from antiphon_quantize.onnx_modules import ExportedStage


class LookingAttention(CrossAttention):
    """Cross-attention that has queries only: the source's keys and values are made elsewhere."""

    def __init__(self, whole: CrossAttention) -> None:
        """Take over what a step needs of a loaded layer."""
        nn.Module.__init__(self)
        self.name, self.config, self.dtype, self.out_proj = (
            whole.name,
            whole.config,
            whole.dtype,
            whole.out_proj,
        )
        self.in_proj = _lines(whole.in_proj, 0, whole.config.dim)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``[n, T, dim]`` to the same."""
        q = split_heads(self.in_proj(x), self.config.head_dim)
        k, v = step.read(f"{self.name}.cross_k"), step.read(f"{self.name}.cross_v")
        return merge_heads(nn.functional.scaled_dot_product_attention(q, k, v), self.out_proj)


class VoiceStage(ExportedStage):
    """Voices to the keys and values of every layer's cross-attention.

    ``speakers`` float32 ``[n, 5, T, width]``, of which the first ``count`` int64 ``[n]`` speak, to float32
    ``[n, H, 5 * T, D]`` by the names of the language model's state. A count of 0 is no voice.
    """

    inputs = ("speakers", "count")
    projection: Tensor
    empty: Tensor
    positions: Tensor

    def __init__(self, model: LanguageModel, conditions: Conditions) -> None:
        """Take the part of a loaded model that voices need; what is left to the model are queries."""
        super().__init__([])
        assert conditions.shape is not None
        self.shape, self.head_dim = conditions.shape, model.transformer.config.head_dim
        for name in ("projection", "empty", "positions"):
            self.register_buffer(name, getattr(conditions, name))
        self.voices = nn.ModuleList()
        outputs: list[str] = []
        for layer in model.transformer.layers:
            assert isinstance(layer, TransformerLayer)
            whole = layer.cross_attention
            assert whole is not None
            self.voices.append(_lines(whole.in_proj, whole.config.dim, None))
            outputs += [f"{whole.name}.cross_k", f"{whole.name}.cross_v"]
            layer.cross_attention = LookingAttention(whole)
        self.outputs = tuple(outputs)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:  # noqa: ARG002
        """See the base class."""
        speakers, count = inputs
        said = speakers.flatten(1, 2) @ self.projection.T
        is_said = torch.arange(self.shape.positions) < count[:, None] * self.shape.frames
        source = torch.where(is_said[..., None], said, self.empty) + self.positions
        parts = (part for voice in self.voices for part in voice(source).chunk(2, dim=-1))
        return tuple(split_heads(part, self.head_dim) for part in parts)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        shape = (rows, MAX_SPEAKERS, self.shape.frames, self.shape.width)
        return torch.zeros(shape), torch.ones(rows, dtype=torch.int64)


def _lines(whole: Linear, first: int, end: int | None) -> Linear:
    """A linear that makes some of the outputs of another; its weights are a copy."""
    weight = whole.weight.data[first:end].clone()
    part = Linear(whole.in_features, len(weight), dtype=weight.dtype)
    part.weight = nn.Parameter(weight, requires_grad=False)
    return part

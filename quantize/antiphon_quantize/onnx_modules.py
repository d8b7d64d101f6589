"""The stages of a tick as functions from inputs and state to outputs and new state, ready for export.

They wrap the torch backend's own modules. Every tensor has its rows on the first axis. State is passed in as
named tensors and returned as their next values; no tensor is written in place.

The voice of a tts model is a separate stage: its keys and values are computed once, not in every step. In the
published weights one matrix makes queries, keys and values of cross-attention. The step uses the first third
of the matrix, a voice uses the rest, and each graph has its own part.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.attention import (
    CrossAttention,
    TransformerLayer,
    merge_heads,
    split_heads,
)
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.modules.lm import Depformer, LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.pipeline import PAUSE_INDEX
from antiphon.backends.torch.state import MaskedStep, Step
from antiphon.backends.torch.weights import Conditions
from antiphon.models.conditioning import MAX_SPEAKERS

VOICE = (".cross_k", ".cross_v")
"""Suffix of state that is a voice's keys and values."""


class ExportedStage(nn.Module):
    """A stage with state: ``forward(*inputs, exec, *state)`` gives ``(*outputs, *next state)``.

    State named in ``given`` is read-only, and has no next value.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(self, specs: Sequence[TensorSpec], *, given: Collection[str] = ()) -> None:
        """Record which tensors the stage keeps."""
        super().__init__()
        self.specs, self.given = tuple(specs), frozenset(given)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the state that has a next value, in the order of the outputs."""
        return tuple(spec.name for spec in self.specs if spec.name not in self.given)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """Run the stage: compute ``outputs`` from ``inputs`` and the state in ``step``."""
        raise NotImplementedError

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Example inputs of the right shapes and dtypes."""
        raise NotImplementedError

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the stage on its inputs, ``exec`` and its state; return its outputs and the next state."""
        count = len(self.inputs)
        if not self.specs:
            return self.run(tensors, MaskedStep({}))
        names = [spec.name for spec in self.specs]
        step = MaskedStep(dict(zip(names, tensors[count + 1 :], strict=True)), tensors[count])
        outputs = self.run(tensors[:count], step)
        return (*outputs, *map(step.read, self.written))


class EncodeStage(ExportedStage):
    """Maps PCM float32 ``[n, samples]`` to codes int64 ``[n, codebooks]``."""

    inputs, outputs = ("pcm",), ("codes",)

    def __init__(self, mimi: Mimi) -> None:
        """Take ownership of a loaded codec."""
        super().__init__([spec for spec in mimi.specs() if spec.name.startswith("encoder")])
        self.mimi = mimi

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        return (self.mimi.encode(inputs[0], step)[:, :, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.mimi.frame_samples),)


class DecodeStage(ExportedStage):
    """Maps codes int64 ``[n, codebooks]`` to PCM float32 ``[n, samples]``."""

    inputs, outputs = ("codes",), ("pcm",)

    def __init__(self, mimi: Mimi, codebooks: int) -> None:
        """Take ownership of a loaded codec; ``codebooks`` is the number of output codebooks."""
        super().__init__([spec for spec in mimi.specs() if spec.name.startswith("decoder")])
        self.mimi, self.codebooks = mimi, codebooks

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        return (self.mimi.decode(inputs[0][:, :, None], step),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.codebooks, dtype=torch.int64),)


class LanguageStage(ExportedStage):
    """Maps tokens int64 ``[n, 1 + n_q]``, delayed, text first, to ``hidden [n, dim]`` and text logits.

    ``logits`` are ``[n, text_card]``. With extra heads also ``pauses [n, heads]``, each head's probability of
    a pause. The keys and values of a voice are an input.
    """

    inputs = ("tokens",)

    def __init__(self, model: LanguageModel) -> None:
        """Take ownership of a loaded language model."""
        specs = list(model.specs())
        super().__init__(specs, given=[spec.name for spec in specs if spec.name.endswith(VOICE)])
        self.model = model
        self.outputs = ("hidden", "logits", "pauses") if len(model.extra_heads) else ("hidden", "logits")

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        hidden, logits = self.model(inputs[0][:, :, None], step)
        outputs = [hidden[:, 0].float(), logits[:, 0].float()]
        if len(self.model.extra_heads):
            outputs.append(self.model.pause_heads(hidden)[:, :, PAUSE_INDEX])
        return tuple(outputs)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, 1 + self.model.audio_emb.streams, dtype=torch.int64),)


class DepformerStage(ExportedStage):
    """Samples all audio tokens of a frame, according to ``docs/sampling.md``.

    Inputs: ``hidden [n, dim]``, ``text`` int64 ``[n]``, ``noise`` float32 ``[n, steps, card]`` (the Gumbel
    noise of every token), ``inverse_temperature`` float32 ``[n]``, and ``topk`` int64 ``[n]`` from 1 to
    ``card``. Output: ``codes`` int64 ``[n, steps]``. A greedy row has inverse temperature 1, top-k 1 and no
    noise.
    """

    inputs = ("hidden", "text", "noise", "inverse_temperature", "topk")
    outputs = ("codes",)

    def __init__(self, depformer: Depformer) -> None:
        """Take ownership of a loaded depformer, which has no state between frames."""
        super().__init__([])
        self.depformer = depformer

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:  # noqa: ARG002
        """See the base class."""
        hidden, text, noise, inverse_temperature, topk = inputs
        widest = cast("int", topk.max().item())
        for is_sure in (widest >= 1, widest <= self.depformer.config.card):
            torch._check(is_sure)

        def sample(codebook: int, logits: Tensor) -> Tensor:
            scaled = logits.float() * inverse_temperature[:, None]
            return race(scaled, noise[:, codebook], topk, widest)

        hidden = hidden.to(self.depformer.dtype)
        return (self.depformer(hidden[:, None], text, sample),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        config = self.depformer.config
        return (
            torch.zeros(rows, config.hidden_dim),
            torch.zeros(rows, dtype=torch.int64),
            torch.zeros(rows, config.steps, config.card),
            torch.ones(rows),
            torch.full((rows,), 2, dtype=torch.int64),
        )


def race(scaled: Tensor, noise: Tensor, topk: Tensor, widest: int) -> Tensor:
    """The index of the largest value of each row after adding noise, among its ``topk [n]`` largest values:
    float32 ``[n, V]`` to int64 ``[n]``.

    ``widest`` is the largest top-k. Among equal values the lowest id is first.
    """
    scaled = scaled.masked_fill(scaled.isnan(), -torch.inf)
    threshold = scaled.topk(widest, dim=-1).values.gather(1, topk[:, None] - 1)
    above, equal = scaled > threshold, scaled == threshold
    spare = topk[:, None] - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= spare))
    return (scaled + noise).masked_fill(~kept, -torch.inf).argmax(dim=-1)


class QueryAttention(CrossAttention):
    """Cross-attention with queries only: another stage makes the source's keys and values."""

    def __init__(self, whole: CrossAttention) -> None:
        """Take ownership of the queries of a loaded layer."""
        nn.Module.__init__(self)
        self.name, self.config, self.dtype, self.out_proj = (
            whole.name,
            whole.config,
            whole.dtype,
            whole.out_proj,
        )
        self.in_proj = _lines(whole.in_proj, 0, whole.config.dim)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape."""
        q = split_heads(self.in_proj(x), self.config.head_dim)
        k, v = step.read(f"{self.name}.cross_k"), step.read(f"{self.name}.cross_v")
        return merge_heads(nn.functional.scaled_dot_product_attention(q, k, v), self.out_proj)


class VoiceStage(ExportedStage):
    """Maps voices to the keys and values of every layer's cross-attention.

    Inputs: ``speakers`` float32 ``[n, 5, T, width]``, and ``count`` int64 ``[n]``, the number of speakers
    used. Outputs: float32 ``[n, H, 5 * T, D]`` under the names of the language model's state. A count of 0
    means no voice.
    """

    inputs = ("speakers", "count")
    projection: Tensor
    empty: Tensor
    positions: Tensor

    def __init__(self, model: LanguageModel, conditions: Conditions) -> None:
        """Take ownership of the keys and values of a loaded model; the model keeps the queries."""
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
            layer.cross_attention = QueryAttention(whole)
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
    """A linear layer for some of the outputs of another; its weights are a copy."""
    weight = whole.weight.data[first:end].clone()
    part = Linear(whole.in_features, len(weight), dtype=weight.dtype)
    part.weight = nn.Parameter(weight, requires_grad=False)
    return part

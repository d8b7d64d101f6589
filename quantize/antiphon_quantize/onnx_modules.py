"""The stages of a tick as functions from inputs and state to outputs and new state, ready to be exported.

They wrap the torch backend's own modules. Every tensor has its rows on the first axis. State comes in as
named tensors and goes out as their next values; nothing is written in place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.depformer import Depformer
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.pipeline import PAUSE_INDEX
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import MaskedStep, Step

VOICE = (".cross_k", ".cross_v")
"""What names of state end with that is a voice's keys and values."""


class GraphStep(MaskedStep):
    """A step as a pure function, in operators that ONNX Runtime has and runs in place."""

    def select(self, new: Tensor, old: Tensor) -> Tensor:
        """``new`` for rows that advance, ``old`` for the others; ONNX Runtime's Where takes no booleans."""
        if self.exec_mask is None or old.dtype != torch.bool:
            return super().select(new, old)
        mask = self.exec_mask.view(-1, *[1] * (old.dim() - 1))
        return (new & mask) | (old & ~mask)

    def write_slots(self, name: str, slots: Tensor, values: Tensor) -> None:
        """See the base class. As an indexed write it becomes ScatterND, whose slices are whole heads."""
        ring = self.tensors[name]
        rows, heads = torch.arange(values.shape[0]), torch.arange(values.shape[1])
        index = (rows[:, None, None], heads[None, :, None], slots[:, None, :])
        self.tensors[name] = ring.index_put(index, self.select(values, ring[index]))


class ExportedStage(nn.Module):
    """A stage with state: ``forward(*inputs, exec, *state)`` gives ``(*outputs, *next state)``.

    State named in ``given`` is only read, and has no next value.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __init__(self, specs: Sequence[TensorSpec], *, given: Collection[str] = ()) -> None:
        """Remember which tensors the stage keeps."""
        super().__init__()
        self.specs, self.given = tuple(specs), frozenset(given)

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the state that has a next value, in the order of the outputs."""
        return tuple(spec.name for spec in self.specs if spec.name not in self.given)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """The stage itself: ``outputs`` from ``inputs`` and the state in ``step``."""
        raise NotImplementedError

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Inputs of the right shapes and dtypes."""
        raise NotImplementedError

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """See the class."""
        count = len(self.inputs)
        if not self.specs:
            return self.run(tensors, GraphStep({}))
        names = [spec.name for spec in self.specs]
        step = GraphStep(dict(zip(names, tensors[count + 1 :], strict=True)), tensors[count])
        outputs = self.run(tensors[:count], step)
        return (*outputs, *map(step.read, self.written))


class EncodeStage(ExportedStage):
    """PCM float32 ``[n, samples]`` to codes int64 ``[n, codebooks]``."""

    inputs, outputs = ("pcm",), ("codes",)

    def __init__(self, mimi: Mimi) -> None:
        """Take over a loaded codec."""
        super().__init__([spec for spec in mimi.specs() if spec.name.startswith("encoder")])
        self.mimi = mimi

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        return (self.mimi.encode(inputs[0], step)[:, :, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.mimi.frame_samples),)


class DecodeStage(ExportedStage):
    """Codes int64 ``[n, codebooks]`` to PCM float32 ``[n, samples]``."""

    inputs, outputs = ("codes",), ("pcm",)

    def __init__(self, mimi: Mimi, codebooks: int) -> None:
        """Take over a loaded codec; ``codebooks`` is how many are spoken."""
        super().__init__([spec for spec in mimi.specs() if spec.name.startswith("decoder")])
        self.mimi, self.codebooks = mimi, codebooks

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        return (self.mimi.decode(inputs[0][:, :, None], step),)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.codebooks, dtype=torch.int64),)


class LanguageStage(ExportedStage):
    """Tokens int64 ``[n, 1 + n_q]``, delayed, text first, to ``hidden [n, dim]`` and text logits.

    ``logits`` are ``[n, text_card]``. With extra heads also ``pauses [n, heads]``, the probability of a
    pause as each head sees it. A voice to look at is given.
    """

    inputs = ("tokens",)

    def __init__(self, model: LanguageModel) -> None:
        """Take over a loaded language model."""
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
    """All audio tokens of a frame, sampled to the norm of ``docs/sampling.md``.

    ``hidden [n, dim]``, ``text`` int64 ``[n]``, ``noise`` float32 ``[n, steps, card]`` (the Gumbel noise
    of every token), ``inverse_temperature`` float32 ``[n]``, ``topk`` int64 ``[n]`` from 1 to ``card``, to
    ``codes`` int64 ``[n, steps]``. A greedy row has inverse temperature 1, top-k 1 and no noise.
    """

    inputs = ("hidden", "text", "noise", "inverse_temperature", "topk")
    outputs = ("codes",)

    def __init__(self, depformer: Depformer) -> None:
        """Take over a loaded depformer; it keeps no state between frames."""
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
    """The winner with its noise among each row's ``topk [n]`` largest: float32 ``[n, V]`` to int64 ``[n]``.

    ``widest`` is the largest top-k. Wherever values are equal the lowest id comes first.
    """
    scaled = scaled.masked_fill(scaled.isnan(), -torch.inf)
    threshold = scaled.topk(widest, dim=-1).values.gather(1, topk[:, None] - 1)
    above, equal = scaled > threshold, scaled == threshold
    spare = topk[:, None] - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= spare))
    return (scaled + noise).masked_fill(~kept, -torch.inf).argmax(dim=-1)

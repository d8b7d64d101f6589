"""Small seeded models in upstream's layout, and upstream's modules as the reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from moshi.conditioners.base import ConditionTensors
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMGen, LMModel
from moshi.utils.compile import no_compile
from torch import Tensor

from antiphon.backends.torch.generation import Generator
from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.state import Step
from antiphon.backends.torch.weights import assign, load_lm, mimi_tensors
from antiphon.models.catalog import load_checkpoint
from antiphon.models.spec import LMSpec
from tests.support.make_checkpoint import make_checkpoint

MIMI_CONFIG: dict[str, Any] = copy.deepcopy(loaders._mimi_config)
MIMI_CONFIG["seanet"] |= {"dimension": 32, "n_filters": 4}
MIMI_CONFIG["quantizer"] |= {
    "dimension": 16,
    "n_q": 6,
    "bins": 64,
    "input_dimension": 32,
    "output_dimension": 32,
}
MIMI_CONFIG["transformer"] |= {
    "d_model": 32,
    "num_heads": 4,
    "num_layers": 2,
    "context": 10,
    "dim_feedforward": 64,
    "input_dimension": 32,
    "output_dimensions": [32],
}


@dataclass(frozen=True)
class MimiPair:
    """The same weights twice: upstream's module and ours."""

    config: dict[str, Any]
    upstream: MimiModel
    ours: Mimi


def randomize(module: torch.nn.Module, seed: int) -> None:
    """Seeded weights large enough for every part to matter (layer scales near 0 would hide attention)."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if name.endswith("embedding_sum"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        elif name.endswith("cluster_usage"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        elif name.endswith("_initialized"):
            tensor.fill_(1)
        elif name.endswith(".scale"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
        elif tensor.dim() > 1 and tensor.shape[0] > 1:
            width = tensor[0].numel()
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * width**-0.5)
        else:
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)


def make_mimi(codebooks: int = 4, config: dict[str, Any] = MIMI_CONFIG, *, pack: bool = False) -> MimiPair:
    """A small Mimi of both kinds."""
    upstream = loaders.get_mimi(None, config, num_codebooks=codebooks)
    randomize(upstream, seed=1)
    with torch.device("meta"):
        ours = Mimi(config, codebooks)
    assign(ours, mimi_tensors(copy.deepcopy(upstream.state_dict()), codebooks), Path("small"))
    return MimiPair(config, upstream, ours.prepare(pack=pack))


class Greedy:
    """Chooses the largest logit; ``on_text`` may change the text tokens, as upstream's hook may."""

    def __init__(self, on_text: Callable[[Tensor], Tensor] = lambda tokens: tokens) -> None:
        self.on_text = on_text

    def text(self, logits: Tensor, step: Step, frames: Tensor) -> Tensor:
        return self.on_text(logits.argmax(-1))

    def audio(self, codebook: int, logits: Tensor, frames: Tensor) -> Tensor:
        return logits.argmax(-1)


DESCRIPTION: dict[str, Any] = {
    "conditioners": {
        "description": {
            "type": "lut",
            "lut": {
                "n_bins": 2,
                "dim": 8,
                "tokenizer": "noop",
                "possible_values": ["very_bad", "very_good"],
            },
        }
    },
    "fuser": {"sum": ["description"], "prepend": [], "cross": []},
}

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "moshi": ("moshi", {}),
    "moshi-gqa": ("moshi", {"kv_repeat": 2}),
    "moshi-halves": ("moshi", {"positional_embedding": "rope_concat", "layer_scale": 0.5}),
    "hibiki-1b": ("hibiki", DESCRIPTION),
    "hibiki-2b": (
        "hibiki",
        {"depformer_weights_per_step_schedule": [0, 1, 2, 3, 4, 5, 5, 5], "depformer_norm": "rms_norm_f32"},
    ),
    "personaplex": ("personaplex", {}),
    "stt": ("stt", {}),
}


@dataclass(frozen=True)
class LMPair:
    """The same language model twice, and its spec."""

    spec: LMSpec
    upstream: LMModel
    ours: Generator
    family: str


def make_lm_pair(folder: Path, name: str, **changed: Any) -> LMPair:
    """A small seeded language model of one of ``SHAPES``, with some of its shape ``changed``, in float32."""
    kind, shape = SHAPES[name]
    make_checkpoint(folder, kind=kind, dtype="float32", **copy.deepcopy(shape) | changed)
    checkpoint = load_checkpoint(str(folder))
    spec, family = checkpoint.spec.lm, checkpoint.spec.family
    assert spec is not None
    path = checkpoint.file("lm")
    ours = load_lm(path, spec.config, steps=spec.dep_q, family=family)
    upstream = loaders.get_moshi_lm(path, copy.deepcopy(dict(spec.config)), dtype=torch.float32)
    if family == "hibiki":
        upstream.text_emb.weight.data[2] = upstream.text_emb.weight.data[3]
    upstream.dep_q = spec.dep_q  # of PersonaPlex's 16 steps, nothing ever uses the last 8
    return LMPair(spec, upstream, Generator(ours.prepare(), spec), family)


@dataclass
class Alone:
    """Upstream's own loop on one session by itself, noting how near each of its choices was to a tie."""

    pair: LMPair
    gaps: list[float] = field(default_factory=list)

    def run(
        self,
        codes: Tensor,
        conditions: ConditionTensors | None = None,
        on_text: Callable[[Tensor], None] | None = None,
    ) -> list[tuple[Tensor, Tensor]]:
        """Codes int64 ``[F, K]``; per frame the tokens ``[1 + dep_q]`` and the extra heads, stacked."""
        upstream, replies = self.pair.upstream, []
        forward = upstream.forward_depformer

        def noted(*arguments: Any) -> Tensor:
            logits = forward(*arguments)
            self.note(logits)
            return logits

        generation = LMGen(
            upstream,
            use_sampling=False,
            condition_tensors=conditions,
            on_text_logits_hook=self.note,
            on_text_hook=on_text,
            support_out_of_sync=True,
        )
        with pytest.MonkeyPatch.context() as patch, no_compile(), generation.streaming(1):
            patch.setattr(upstream, "forward_depformer", noted)
            for frame in codes:
                self.gaps.append(float("inf"))
                out = generation.step_with_extra_heads(frame.view(1, -1, 1))
                assert out is not None
                tokens, heads = out
                probabilities = torch.stack([head[0, 0] for head in heads]) if heads else torch.empty(0)
                replies.append((tokens[0, :, 0], probabilities))
        return replies

    def note(self, logits: Tensor) -> None:
        first, second = logits.float().flatten()[None].topk(2).values[0].tolist()
        self.gaps[-1] = min(self.gaps[-1], first - second)

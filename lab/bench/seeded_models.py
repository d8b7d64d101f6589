"""Full-size models with seeded weights: upstream's Mimi and ours, and a language model of stt-1b's size."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel

from antiphon.backends.torch.modules.mimi import Mimi
from antiphon.backends.torch.weights import assign, mimi_tensors
from antiphon.models.published import MIMI_CONFIG
from lab.bench.published import STT_1B
from tests.support.small_models import mimi_config

SMALL_LM: Mapping[str, Any] = {
    **STT_1B, "dim": 64, "num_layers": 2, "num_heads": 4, "context": 16, "card": 64, "text_card": 100,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seeded:
    """A model to measure: its configuration, its stages, and a codec's number of codebooks."""

    config: Mapping[str, Any]
    stages: tuple[str, ...]
    codebooks: int = 0


MODELS: Mapping[str, Seeded] = {
    "mimi-full": Seeded(MIMI_CONFIG, ("encode", "decode"), 8),
    "mimi-small": Seeded(mimi_config(), ("encode", "decode"), 8),
    "listener-full": Seeded(MIMI_CONFIG, ("encode",), STT_1B["n_q"]),
    "listener-small": Seeded(mimi_config(), ("encode",), 8),
    "lm-full": Seeded(STT_1B, ("lm",)),
    "lm-small": Seeded(SMALL_LM, ("lm",)),
}
"""By name: Mimi for a voice of 8 codebooks, Mimi with the codebooks of stt-1b's input, and stt-1b's own
step."""


def upstream_model(seeded: Seeded) -> MimiModel | LMModel:
    """Return upstream's model in its CPU form: Mimi in float32, a language model in bfloat16."""
    if "lm" in seeded.stages:
        return make_lm(seeded.config, torch.bfloat16)
    return upstream_mimi(seeded.codebooks, seeded.config)


def upstream_calls(
    model: MimiModel | LMModel, stages: tuple[str, ...], rows: int, stack: ExitStack
) -> dict[str, Callable[[], object]]:
    """Return for each stage a callable that computes one frame of ``rows`` rows, which stream until ``stack``
    is closed."""
    stack.enter_context(model.streaming(rows))
    if isinstance(model, LMModel):
        tokens = torch.randint(model.card, (rows, 1 + model.n_q, 1))
        return {"lm": lambda: model.forward_text(tokens)}
    pcm = torch.randn(rows, 1, model.frame_size) * 0.1
    codes = model.encode(pcm)
    calls = {"encode": lambda: model.encode(pcm), "decode": lambda: model.decode(codes)}
    return {stage: calls[stage] for stage in stages}


def upstream_mimi(codebooks: int, config: Mapping[str, Any] | None) -> MimiModel:
    """Return upstream's Mimi with seeded weights; ``config`` None is the full-size one."""
    torch.manual_seed(0)
    config = MIMI_CONFIG if config is None else config
    upstream = loaders.get_mimi(None, copy.deepcopy(dict(config)), num_codebooks=codebooks)
    for name, buffer in upstream.named_buffers():
        if name.endswith("embedding_sum"):
            buffer.normal_()
        elif name.endswith("_initialized"):
            buffer.fill_(1)
    return upstream


def make_mimi(codebooks: int, config: Mapping[str, Any] | None) -> tuple[MimiModel, Mimi]:
    """Return upstream's Mimi and ours, with the same seeded weights."""
    upstream = upstream_mimi(codebooks, config)
    with torch.device("meta"):
        ours = Mimi(MIMI_CONFIG if config is None else config, codebooks)
    published = {name: tensor.clone() for name, tensor in upstream.state_dict().items()}
    tensors = mimi_tensors(published, codebooks)
    assign(ours, tensors, Path("seeded"))
    return upstream, ours.prepare(pack=True)


def make_lm(config: Mapping[str, Any], dtype: torch.dtype) -> LMModel:
    """Return an upstream language model with seeded weights."""
    torch.manual_seed(0)
    model = loaders.get_moshi_lm(None, copy.deepcopy(dict(config)), device="meta", dtype=dtype)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() == 3:
            tensor.fill_(1)
        else:
            tensor.normal_(0, tensor.shape[-1] ** -0.5)
    return model.eval()

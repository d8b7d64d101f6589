"""Full-size models with seeded weights: upstream's Mimi and ours, and a language model of stt-1b's size."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel
from moshi.models.lm import LMModel

from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.weights import assign, mimi_tensors
from antiphon.models import defaults

STT_1B: Mapping[str, Any] = {
    "dim": 2048, "num_layers": 16, "num_heads": 16, "context": 750, "n_q": 32, "dep_q": 0, "card": 2048,
    "text_card": 8000, "hidden_scale": 4.125, "gating": "silu", "norm": "rms_norm_f32", "causal": True,
    "positional_embedding": "rope", "max_period": 100000.0, "layer_scale": None, "delays": [0] * 33,
    "existing_text_padding_id": 3, "extra_heads_num_heads": 4, "extra_heads_dim": 6,
}  # fmt: skip
SMALL_LM: Mapping[str, Any] = {
    **STT_1B, "dim": 64, "num_layers": 2, "num_heads": 4, "context": 16, "card": 64, "text_card": 100,
}  # fmt: skip


def upstream_mimi(codebooks: int, config: Mapping[str, Any] | None) -> MimiModel:
    """Upstream's Mimi with seeded weights; ``config`` None is the full-size one."""
    torch.manual_seed(0)
    config = defaults.MIMI_CONFIG if config is None else config
    upstream = loaders.get_mimi(None, copy.deepcopy(dict(config)), num_codebooks=codebooks)
    for name, buffer in upstream.named_buffers():
        if name.endswith("embedding_sum"):
            buffer.normal_()
        elif name.endswith("_initialized"):
            buffer.fill_(1)
    return upstream


def make_mimi(codebooks: int, config: Mapping[str, Any] | None) -> tuple[MimiModel, Mimi]:
    """A Mimi twice, with the same seeded weights."""
    upstream = upstream_mimi(codebooks, config)
    with torch.device("meta"):
        ours = Mimi(defaults.MIMI_CONFIG if config is None else config, codebooks)
    published = {name: tensor.clone() for name, tensor in upstream.state_dict().items()}
    tensors = mimi_tensors(published, codebooks)
    assign(ours, tensors, Path("seeded"))
    return upstream, ours.prepare(pack=True)


def make_lm(config: Mapping[str, Any], dtype: torch.dtype) -> LMModel:
    """An upstream language model with seeded weights."""
    torch.manual_seed(0)
    model = loaders.get_moshi_lm(None, copy.deepcopy(dict(config)), device="meta", dtype=dtype)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        if tensor.dim() == 3:
            tensor.fill_(1)
        else:
            tensor.normal_(0, tensor.shape[-1] ** -0.5)
    return model.eval()

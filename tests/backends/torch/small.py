"""Small seeded models in upstream's own layout, and upstream's modules around them as the oracle."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from moshi.models import loaders
from moshi.models.compression import MimiModel

from antiphon.backends.torch.mimi import Mimi
from antiphon.backends.torch.weights import assign, mimi_tensors

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
    assign(ours, mimi_tensors(copy.deepcopy(upstream.state_dict()), codebooks), "small")
    return MimiPair(config, upstream, ours.prepare(pack_rows=2 if pack else None))

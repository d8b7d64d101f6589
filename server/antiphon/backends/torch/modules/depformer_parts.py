"""Parts of the depth transformer: its layers, and the weights of every step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.attention import PLAIN, Compute, merge_heads, split_heads
from antiphon.backends.torch.modules.embedding import TokenEmbedding
from antiphon.backends.torch.modules.feedforward import GatedFeedForward
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.norms import make_norm, make_scale
from antiphon.models.architecture import DepformerConfig

Chooser = Callable[[int, Tensor], Tensor]
"""Called with (step, logits ``[n, card]``), returns the tokens int64 ``[n]``."""

Past = tuple[Tensor, Tensor]


class DepformerLayer(nn.Module):
    """One layer, with ``sets`` sets of projections and feed-forwards, and common norms."""

    def __init__(self, config: DepformerConfig, dtype: torch.dtype) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.dim, self.kv_dim, self.head_dim = config.dim, config.kv_dim, config.head_dim
        out_dim = config.dim + 2 * config.kv_dim
        self.in_projs = nn.ModuleList(Linear(config.dim, out_dim, dtype=dtype) for _ in range(config.sets))
        self.out_projs = nn.ModuleList(
            Linear(config.dim, config.dim, dtype=dtype) for _ in range(config.sets)
        )
        self.gating = nn.ModuleList(
            GatedFeedForward(config.gating, config.dim, width, dtype) for width in config.feed_forward
        )
        self.norm1 = make_norm(config.norm, config.dim, dtype)
        self.norm2 = make_norm(config.norm, config.dim, dtype)
        self.layer_scale_1 = make_scale(config.dim, dtype, wanted=config.layer_scale)
        self.layer_scale_2 = make_scale(config.dim, dtype, wanted=config.layer_scale)

    def forward(self, x: Tensor, which: int, past: Past | None) -> tuple[Tensor, Past]:
        """``[n, 1, dim]`` and the keys and values of the steps before, to the same with one more."""
        projected = self.in_projs[which](self.norm1(x))
        parts = projected.split([self.dim, self.kv_dim, self.kv_dim], dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in parts)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        out = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.kv_dim < self.dim)
        x = x + self.layer_scale_1(merge_heads(out, self.out_projs[which]))
        return x + self.layer_scale_2(self.gating[which](self.norm2(x))), (k, v)


class DepformerParts(nn.Module):
    """The weights: what a step reads, its layers, and its head."""

    def __init__(self, config: DepformerConfig, compute: Compute = PLAIN) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.config, self.dtype = config, compute.dtype
        dim, dtype, steps = config.dim, compute.dtype, config.steps
        inputs = config.sets if config.multi_linear else 1
        self.inputs = nn.ModuleList(Linear(config.hidden_dim, dim, dtype=dtype) for _ in range(inputs))
        self.text_emb = TokenEmbedding(
            config.text_card + 1, dim, dtype, low_rank=config.low_rank, demux=config.demux
        )
        self.emb = nn.ModuleList(
            TokenEmbedding(config.card + 1, dim, dtype, low_rank=config.low_rank) for _ in range(steps - 1)
        )
        self.layers = nn.ModuleList(DepformerLayer(config, dtype) for _ in range(config.layers))
        self.norms = nn.ModuleList(
            make_norm(config.output_norm, dim, dtype) if config.output_norm else nn.Identity()
            for _ in range(steps)
        )
        self.linears = nn.ModuleList(
            Linear(dim, config.card, bias=config.bias, dtype=dtype) for _ in range(steps)
        )
        self.joined_inputs: Tensor | None = None

"""Feed-forward blocks: plain with GELU (Mimi), gated (the language models)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.linear import Linear
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import gated_hidden

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class PlainFeedForward(nn.Module):
    """``linear2(gelu(linear1(x)))``."""

    def __init__(self, dim: int, hidden: int, dtype: torch.dtype) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.linear1 = Linear(dim, hidden, dtype=dtype)
        self.linear2 = Linear(hidden, dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same."""
        out: Tensor = self.linear2(functional.gelu(self.linear1(x)))
        return out


class GatedFeedForward(nn.Module):
    """``linear_out(act(a) * b)``, with ``a, b`` the halves of ``linear_in(x)`` (Shazeer 2020)."""

    def __init__(self, activation: str, dim: int, feed_forward: int, dtype: torch.dtype) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnsupportedError(f"gating is {activation!r}; it can be none, {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        hidden = gated_hidden(dim, feed_forward)
        self.linear_in = Linear(dim, 2 * hidden, dtype=dtype)
        self.linear_out = Linear(hidden, dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]`` to the same."""
        gate, value = self.linear_in(x).chunk(2, dim=-1)
        out: Tensor = self.linear_out(self.activation(gate) * value)
        return out


def make_feed_forward(gating: str, dim: int, feed_forward: int, dtype: torch.dtype) -> nn.Module:
    """The block a configuration's ``gating`` names."""
    if gating == "none":
        return PlainFeedForward(dim, feed_forward, dtype)
    return GatedFeedForward(gating, dim, feed_forward, dtype)

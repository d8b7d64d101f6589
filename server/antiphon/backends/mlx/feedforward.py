"""Feed-forward blocks: plain with GELU (Mimi), gated (the language models)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import mlx.core as mx

from antiphon.backends.mlx.matrix import Linear, Weights
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import gated_hidden

Activation: TypeAlias = Callable[[mx.array], mx.array]


def gelu(x: mx.array) -> mx.array:
    """The exact one, by the error function; ``moshi_mlx`` approximates it, and its Mimi differs by that."""
    return x * (1 + mx.erf(x * math.sqrt(0.5))) * 0.5


ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": lambda x: x * mx.sigmoid(x),
    "gelu": gelu,
    "relu": lambda x: mx.maximum(x, 0),
    "sigmoid": mx.sigmoid,
    "tanh": mx.tanh,
}


@dataclass(frozen=True, slots=True)
class PlainFeedForward:
    """``linear2(gelu(linear1(x)))``."""

    linear1: Linear
    linear2: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """``[..., dim]`` to the same."""
        return self.linear2(gelu(self.linear1(x)))


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """``linear_out(act(a) * b)``, with ``a, b`` the halves of ``linear_in(x)`` (Shazeer 2020)."""

    activation: Activation
    linear_in: Linear
    linear_out: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """``[..., dim]`` to the same."""
        gate, value = mx.split(self.linear_in(x), 2, axis=-1)
        return self.linear_out(self.activation(gate) * value)


FeedForward: TypeAlias = PlainFeedForward | GatedFeedForward


def load_feed_forward(gating: str, weights: Weights, name: str, dim: int, feed_forward: int) -> FeedForward:
    """The block a configuration's ``gating`` names.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if gating == "none":
        return PlainFeedForward(
            weights.linear(f"{name}.linear1", dim, feed_forward),
            weights.linear(f"{name}.linear2", feed_forward, dim),
        )
    if gating not in ACTIVATIONS:
        raise UnsupportedError(f"gating is {gating!r}; it can be none, {', '.join(ACTIVATIONS)}")
    hidden = gated_hidden(dim, feed_forward)
    return GatedFeedForward(
        ACTIVATIONS[gating],
        weights.linear(f"{name}.linear_in", dim, 2 * hidden),
        weights.linear(f"{name}.linear_out", hidden, dim),
    )

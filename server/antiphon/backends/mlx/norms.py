"""Normalisation layers under the names the published configurations use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from antiphon.backends.mlx.matrix import Weights
from antiphon.errors import UnsupportedError

_EPS: Final[Mapping[str, float]] = {
    "layer_norm": 1e-5,
    "layer_norm_f32": 1e-8,
    "rms_norm": 1e-5,
    "rms_norm_f32": 1e-8,
}


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation, or with ``bias`` None root-mean-square; mlx computes both in float32."""

    weight: mx.array
    bias: mx.array | None
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        """``[n, T, dim]`` to the same."""
        if self.bias is None:
            return mx.fast.rms_norm(x, self.weight, self.eps)
        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)


def load_norm(kind: str, weights: Weights, name: str, dim: int) -> Norm:
    """The layer a configuration's ``norm`` names.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if kind not in _EPS:
        raise UnsupportedError(f"norm is {kind!r}; it can be one of {', '.join(_EPS)}")
    bias = weights.array(f"{name}.bias", (dim,)) if kind.startswith("layer") else None
    return Norm(weights.array(f"{name}.weight", (dim,)), bias, _EPS[kind])

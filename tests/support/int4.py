"""INT4 weights without a search for scales, for models whose words do not matter."""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon.backends.torch.quantised import pack_nibbles

BLOCK = 32
"""Weights that share a scale."""


def nearest_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix ``[out, in]`` as packed uint8 ``[out, in / 2]``, and scales float16 ``[out, in / BLOCK]``."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1) / 7.5).half()
    whole = torch.round(blocks / scale.float()[..., None]).clamp(-8, 7).to(torch.int8)
    return pack_nibbles(whole.flatten(1)), scale

"""Training with the rounding of the recipe "small" of onnx: steps use rounded weights, and update the weights
behind them.

The gradient of a rounded weight is taken for that of the weight itself (a straight-through estimator, Bengio
et al. 2013).
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from antiphon_quantize.onnx_blocks import Blocks, round_matrix

BITS: Final = 4
BLOCK: Final = 32
ROUNDED: Final = re.compile(r"(^|\.)(transformer|depformer)\.layers\..*weight$")
"""The matrices that the recipe "small" of onnx rounds to ``BITS`` in blocks of ``BLOCK``."""
SEARCH_EVERY_STEPS: Final = 100
"""Steps between searches: a search for the scales of twelve million weights takes 4 s, rounding with known
scales a fiftieth of that."""


def is_rounded(name: str, weight: Tensor) -> bool:
    """Return whether a tensor of upstream's language model is rounded."""
    return weight.dim() == 2 and ROUNDED.search(name) is not None


def in_blocks(weight: Tensor) -> Blocks:
    """Return ``weight [out, in]`` as that recipe rounds it, with a searched scale for each block."""
    return round_matrix(weight.cpu().numpy(), BITS, BLOCK, search=True)


def rounded(weight: Tensor, scales: Tensor) -> Tensor:
    """Return ``weight [out, in]`` rounded to the grid of ``scales [out, in / BLOCK]``."""
    rows, columns = weight.shape
    blocks = functional.pad(weight, (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    scale, limit = scales[..., None], 1 << (BITS - 1)
    whole = (blocks / scale).round_().clamp_(-limit, limit - 1)
    return whole.mul_(scale).view(rows, -1)[:, :columns]


class Rounding:
    """The matrices of a language model, which are rounded from :meth:`apply` to :meth:`restore`."""

    def __init__(self, lm: Any) -> None:
        self._weights = [weight for name, weight in lm.named_parameters() if is_rounded(name, weight)]
        self._scales: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._uses = 0

    def apply(self) -> None:
        """Round the weights for a forward and a backward pass."""
        if self._uses % SEARCH_EVERY_STEPS == 0:
            self._scales = [
                torch.from_numpy(in_blocks(weight.data).scales).to(weight.device) for weight in self._weights
            ]
        self._uses += 1
        self._kept = [weight.data for weight in self._weights]
        for weight, scales in zip(self._weights, self._scales, strict=True):
            weight.data = rounded(weight.data, scales)

    def restore(self, *_: object) -> None:
        """Restore the weights; a hook of the optimiser before its step."""
        for weight, kept in zip(self._weights, self._kept, strict=bool(self._kept)):
            weight.data = kept
        self._kept = []


def round_in_blocks(lm: Any) -> None:
    """Round a language model permanently."""
    with torch.no_grad():
        for name, weight in lm.named_parameters():
            if is_rounded(name, weight):
                weight.copy_(torch.from_numpy(in_blocks(weight.data).values()))

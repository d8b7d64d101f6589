"""The norm's noise (``docs/sampling.md``) on the device, for every token of every stream at once.

Noise is a pure function of (seed, step, stream, token), so a whole frame's is drawn in one pass before
any logits exist. ``antiphon.models.philox`` is the same in numpy. Words of 32 bits live in int64 here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon.models.philox import ROUNDS, WORDS_PER_BLOCK

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def _multiply(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a product; int64 wraps around, which leaves its 64 bits right."""
    product = words * factor
    return (product >> 32) & _MASK, product & _MASK


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> Tensor:
    """Ten rounds of Philox: four and two int64 tensors that broadcast, to ``[..., 4]``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def gumbel_noise(seeds: Tensor, frames: Tensor, streams: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise float32 ``[n, K, vocabulary]``.

    ``seeds`` int64 ``[n, K]`` (the bits of uint64), ``frames`` int64 ``[n]``, ``streams`` int64 ``[K]``.
    """
    blocks = torch.arange(-(-vocabulary // WORDS_PER_BLOCK), device=frames.device)
    step, seed = frames[:, None, None], seeds[:, :, None]
    counter = (step & _MASK, step >> 32, streams[:, None], blocks)
    words = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    uniform = (words.flatten(2)[..., :vocabulary].double() + 0.5) * 2.0**-32
    return -torch.log(-torch.log(uniform)).float()

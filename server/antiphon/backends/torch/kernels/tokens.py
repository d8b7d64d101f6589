"""Noise and tokens by Triton kernels, to the norm of ``docs/sampling.md``: what ``noise.py`` and
``sampling.py`` compute, in a launch each.

Not measured: the kernels have been run on no GPU yet.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from antiphon.backends.torch.kernels.token_kernels import choose_tokens, draw_noise
from antiphon.models.philox import WORDS_PER_BLOCK

MOST_TOKENS = 8192
"""The largest vocabulary a program holds in registers."""

BLOCKS = 128
"""Philox blocks of one program."""


def drawn_noise(seeds: Tensor, frames: Tensor, streams: Tensor, vocabulary: int) -> Tensor:
    """Gumbel noise float32 ``[n, K, vocabulary]`` of int64 ``seeds [n]``, ``frames [n]``, ``streams [K]``."""
    rows, count = frames.shape[0], streams.shape[0]
    out = torch.empty(rows, count, vocabulary, device=frames.device)
    grid = (triton.cdiv(vocabulary, BLOCKS * WORDS_PER_BLOCK), count, rows)
    if count:  # a model that only listens has no voice to draw for
        draw_noise[grid](seeds, frames, streams, out, count, vocabulary, BLOCK=BLOCKS, enable_fp_fusion=False)
    return out


def chosen_tokens(
    logits: Tensor, inverse: Tensor, temperature: Tensor, topk: Tensor, noise: Tensor
) -> Tensor:
    """A token a row: logits ``[n, V]`` times ``inverse [n]``, noise ``[n, V]``, to int64 ``[n]``.

    V is at most MOST_TOKENS. ``temperature`` and ``topk``: see
    :func:`antiphon.backends.torch.sampling.choose`.
    """
    rows, vocabulary = logits.shape
    assert logits.stride(1) == noise.stride(1) == 1
    tokens = topk.new_empty(rows)
    choose_tokens[(rows,)](
        logits, inverse, temperature, topk, noise, tokens, logits.stride(0), noise.stride(0), vocabulary,
        BLOCK=triton.next_power_of_2(vocabulary), num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return tokens

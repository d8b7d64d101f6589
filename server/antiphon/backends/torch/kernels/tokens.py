"""Chooses tokens with Triton kernels, by the rules of ``docs/sampling.md`` and ``sampling.py``; noise is
drawn only for candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from antiphon.backends.torch.kernels.token_kernels import (
    choose_tokens,
    delay_input,
    delay_output,
    remember_words,
    weigh_words,
)

MOST_TOKENS = 32768
"""Maximum vocabulary that fits into a program's registers: 32 tokens per thread, with 32 warps."""

NOISY_PER_WARP = 32
"""Candidates for which noise is drawn at once, one for each thread."""

TOKENS_PER_WARP = 256
"""Tokens per warp of a program, which has 8 to 32 warps."""

PIECE = 8192
"""Tokens that a program compares together once it knows the lowest logit of the top k: 8 per thread."""

WORDS_PIECE, WEIGHED = 8, 256
"""Recent words, and tokens, that a program compares at once."""


@dataclass(frozen=True, slots=True)
class Draw:
    """The sampling values of a stream's tokens, one per row ``[n]``: see :func:`sampling.choose`.

    ``seed`` and ``frame``, int64, determine the noise.
    """

    temperature: Tensor
    topk: Tensor
    seed: Tensor
    frame: Tensor


def chosen_tokens(logits: Tensor, inverse: Tensor | None, draw: Draw, stream: int) -> Tensor:
    """Choose a token for each row, int64 ``[n]``, from logits ``[n, V]`` times ``inverse [n]`` and a stream
    of noise.

    V is at most MOST_TOKENS. If ``inverse`` is None, the logits are already multiplied.
    """
    rows, vocabulary = logits.shape
    assert logits.stride(1) == 1
    tokens, block = draw.topk.new_empty(rows), triton.next_power_of_2(vocabulary)
    listed = draw.topk.new_empty(rows, 1 + block, dtype=torch.int32)
    choose_tokens[(rows,)](
        logits, draw.temperature if inverse is None else inverse, draw.temperature, draw.topk, draw.seed,
        draw.frame, listed, tokens, logits.stride(0), vocabulary, stream,
        BLOCK=block, PIECE=min(block, PIECE), NOISY=min(block, NOISY_PER_WARP * warps_of(block)),
        IS_SCALED=inverse is None, num_warps=warps_of(block), enable_fp_fusion=False,
    )  # fmt: skip
    return tokens


def warps_of(block: int) -> int:
    """The number of warps of the program that chooses among ``block`` tokens."""
    return min(32, max(8, block // TOKENS_PER_WARP))


@dataclass(frozen=True, slots=True)
class TextWeights:
    """What :func:`weighed_text` applies to the logits of ``n`` places, each the text of one row in a step.
    ``recent``, int64 ``[rows, W]``, has the recent tokens of all rows; ``at [n]`` is the row of each place.

    The other arrays are parameters of the places, ``[n]``; ``padding`` is the token that gets the bonus.
    """

    recent: Tensor
    at: Tensor
    inverse: Tensor
    penalty: Tensor
    inverse_penalty: Tensor
    bonus: Tensor
    context: Tensor
    padding: int


def weighed_text(logits: Tensor, words: TextWeights) -> Tensor:
    """Weigh logits ``[n, V]``: penalise recent words, divide by the temperature, add the padding bonus;
    float32 ``[n, V]``.
    """
    rows, vocabulary = logits.shape
    assert logits.stride(1) == 1
    out = torch.empty(rows, vocabulary, device=logits.device)
    weigh_words[(triton.cdiv(vocabulary, WEIGHED), rows)](
        logits, words.recent, words.at, words.inverse, words.penalty, words.inverse_penalty, words.bonus,
        words.context, out, logits.stride(0), vocabulary, words.padding,
        WORDS=words.recent.shape[1], PIECE=WORDS_PIECE, BLOCK=WEIGHED, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def remember(tokens: Tensor, words: TextWeights, end_padding: int, initial: int) -> None:
    """Append the places' tokens ``[n]`` to their rows' recent words, in place."""
    remember_words[(tokens.shape[0],)](
        tokens, words.recent, words.at, words.padding, end_padding, initial,
        WORDS=words.recent.shape[1], num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Delayed:
    """A delay cache: ``tokens`` int64 ``[rows, K, capacity]``; ``at [n]`` is the row of each place.

    ``delays [K]`` and ``initial [K]`` belong to the streams; the first ``generated`` streams are the model's
    own.
    """

    tokens: Tensor
    at: Tensor
    delays: Tensor
    initial: Tensor
    generated: int


def delayed_input(cache: Delayed, rows: Tensor, offsets: Tensor, codes: Tensor) -> Tensor:
    """Run :meth:`antiphon.backends.torch.generation.DelayCache.inputs` as a kernel; ``rows [n]`` is NO_ROW at
    a place without a row.
    """
    places, streams, capacity = codes.shape[0], *cache.tokens.shape[1:]
    out = offsets.new_empty(places, streams, 1)
    delay_input[(places,)](
        cache.tokens, cache.at, rows, offsets, codes.contiguous(), cache.delays, cache.initial, out,
        GENERATED=cache.generated, STREAMS=streams, CAPACITY=capacity,
        BLOCK=triton.next_power_of_2(streams), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def delayed_output(cache: Delayed, offsets: Tensor, tokens: Tensor, most_delay: int) -> Tensor:
    """Run :meth:`antiphon.backends.torch.generation.DelayCache.outputs` as a kernel."""
    out = torch.empty_like(tokens)
    delay_output[(tokens.shape[0],)](
        cache.tokens, cache.at, offsets, tokens.contiguous(), cache.delays, out, most_delay,
        GENERATED=cache.generated, STREAMS=cache.tokens.shape[1], CAPACITY=cache.tokens.shape[2],
        BLOCK=triton.next_power_of_2(cache.generated), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out

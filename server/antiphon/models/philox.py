"""Noise that is a pure function of (seed, step, stream, token), defined in docs/sampling.md, section 2.

Philox4x32-10 is from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A
counter-based generator has no state, so a session draws the same noise in any row and any batch, also after
it was moved or resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

ROUNDS: Final = 10
WORDS_PER_BLOCK: Final = 4
_MULTIPLIERS: Final = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL: Final = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_LOW: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)


def philox4x32(counter: Iterable[Words], key: Iterable[Words]) -> Words:
    """Ten rounds of Philox. Four counters and two keys, which broadcast, give uint32 ``[4, ...]``.

    An argument that is constant along an axis has size 1 there, so that the first rounds compute it once.
    """
    even, odd, other_even, other_odd = counter
    low_key, high_key = key
    for _ in range(ROUNDS):
        products = np.multiply(even, _MULTIPLIERS[0], dtype=np.uint64)
        others = np.multiply(other_even, _MULTIPLIERS[1], dtype=np.uint64)
        even = (others >> _32).astype(np.uint32) ^ odd ^ low_key
        other_even = (products >> _32).astype(np.uint32) ^ other_odd ^ high_key
        odd, other_odd = others.astype(np.uint32), products.astype(np.uint32)
        low_key, high_key = low_key + _WEYL[0], high_key + _WEYL[1]
    return np.stack([even, odd, other_even, other_odd])


def random_words(
    seed: NDArray[np.uint64], step: NDArray[np.int64], stream: int, tokens: NDArray[np.int64]
) -> Words:
    """One random word for each token: word ``token % 4`` of the block whose counter ends in ``token // 4``.

    ``seed`` and ``step`` are ``[B]``, ``tokens`` are ``[B, K]``, ascending in each row; returns uint32
    ``[B, K]``. A block that serves several tokens is computed once.
    """
    blocks = tokens // WORDS_PER_BLOCK
    is_new = np.ones(blocks.shape, dtype=np.bool_)
    np.not_equal(blocks[:, 1:], blocks[:, :-1], out=is_new[:, 1:])
    row, _ = np.nonzero(is_new)
    steps = step.astype(np.uint64)[row]
    counter = np.empty((4, len(row)), dtype=np.uint32)
    counter[0], counter[1] = steps & _LOW, steps >> _32
    counter[2], counter[3] = stream, blocks[is_new]
    key = np.stack([seed & _LOW, seed >> _32]).astype(np.uint32)[:, row]
    block_index = np.cumsum(is_new).reshape(blocks.shape) - 1
    words: Words = philox4x32(counter, key)[tokens % WORDS_PER_BLOCK, block_index]
    return words


def gumbel(words: Words) -> NDArray[np.float32]:
    """Standard Gumbel noise ``-ln(-ln((word + 0.5) / 2**32))``, computed in float64, as float32."""
    noise = words + 0.5
    noise *= 2.0**-32
    for _ in range(2):  # in place: for thousands of rows' tokens a copy costs as much as a logarithm
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise.astype(np.float32)


def gumbel_table(
    seed: NDArray[np.uint64], step: NDArray[np.int64], streams: NDArray[np.int64], vocabulary: int
) -> NDArray[np.float32]:
    """The noise of every token of several streams: ``seed`` and ``step`` ``[B]``, ``streams [K]``.

    Returns float32 ``[B, K, vocabulary]``, with the same numbers as :func:`random_words` and :func:`gumbel`.
    """
    steps, seeds = step.astype(np.uint64)[:, None, None], seed[:, None, None]
    blocks = np.arange(-(-vocabulary // WORDS_PER_BLOCK), dtype=np.uint32)
    counter = [steps & _LOW, steps >> _32, streams[:, None], blocks]
    key = [seeds & _LOW, seeds >> _32]
    words = philox4x32(*([part.astype(np.uint32) for part in parts] for parts in (counter, key)))
    tokens = np.moveaxis(words, 0, -1).reshape(len(seed), len(streams), -1)[:, :, :vocabulary]
    return gumbel(tokens)

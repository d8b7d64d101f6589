"""Noise that is a pure function of (seed, step, stream, token): the norm is docs/sampling.md, section 2.

Philox4x32-10 is from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011. A counter-based generator has no state, so a session draws the same noise whatever row it sits
in, whatever else is in the batch, also after a move or a resume.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32]

ROUNDS: Final = 10
WORDS_PER_BLOCK: Final = 4
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds of Philox on N counters: uint32 ``[4, N]`` and ``[2, N]`` give uint32 ``[4, N]``."""
    multipliers = np.array(_MULTIPLIERS, dtype=np.uint64)[:, None]
    weyl = np.array(_WEYL, dtype=np.uint32)[:, None]
    even, odd = counter[0::2], counter[1::2]
    for _ in range(ROUNDS):
        products = even * multipliers
        high, low = (products >> _32).astype(np.uint32), (products & _LOW).astype(np.uint32)
        even, odd = high[::-1] ^ odd ^ key, low[::-1]
        key = key + weyl
    return np.stack([even[0], odd[0], even[1], odd[1]])


def random_words(
    seed: NDArray[np.uint64], step: NDArray[np.int64], stream: int, tokens: NDArray[np.int64]
) -> Words:
    """One word for each token: word ``token % 4`` of the block whose counter ends in ``token // 4``.

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
    uniform = (words + 0.5) * 2.0**-32
    noise: NDArray[np.float32] = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise


def gumbel_table(
    seed: NDArray[np.uint64], step: NDArray[np.int64], streams: NDArray[np.int64], vocabulary: int
) -> NDArray[np.float32]:
    """The noise of every token of several streams: ``seed`` and ``step`` ``[B]``, ``streams [K]``.

    Returns float32 ``[B, K, vocabulary]``, the same numbers as :func:`random_words` and :func:`gumbel`.
    """
    shape = (len(seed), len(streams), -(-vocabulary // WORDS_PER_BLOCK))
    steps, seeds = step.astype(np.uint64)[:, None, None], seed[:, None, None]
    blocks = np.arange(shape[2], dtype=np.uint32)
    counter = [steps & _LOW, steps >> _32, streams[:, None], blocks]
    key = [seeds & _LOW, seeds >> _32]
    flat = [np.broadcast_to(part, shape).astype(np.uint32).ravel() for part in (*counter, *key)]
    words = philox4x32(np.stack(flat[:4]), np.stack(flat[4:]))
    tokens = words.T.reshape(*shape[:2], -1)[:, :, :vocabulary]
    return gumbel(tokens)

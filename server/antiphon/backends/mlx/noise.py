"""The norm's noise (``docs/sampling.md``, section 2) for every token of a frame, made on the host.

It depends on no logits, so the host makes it while the device is still busy with the frame. And it is the
norm's to the last bit: its logarithms want float64, which Apple's GPUs do not have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.models.philox import WORDS_PER_BLOCK, gumbel, philox4x32

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def gumbel_noise(
    seeds: NDArray[np.uint64], steps: NDArray[np.int64], streams: NDArray[np.int64], vocabulary: int
) -> NDArray[np.float32]:
    """Gumbel noise float32 ``[B, K, vocabulary]`` of rows with ``seeds [B]`` at ``steps [B]``.

    ``streams`` int64 ``[K]``: 0 for text, q + 1 for codebook q.
    """
    blocks = np.arange(-(-vocabulary // WORDS_PER_BLOCK), dtype=np.uint32)
    shape = (len(seeds), len(streams), len(blocks))
    taken = steps.astype(np.uint64)
    counter = np.empty((4, *shape), dtype=np.uint32)
    counter[0], counter[1] = (taken & _LOW)[:, None, None], (taken >> _32)[:, None, None]
    counter[2], counter[3] = streams[:, None], blocks
    key = np.empty((2, *shape), dtype=np.uint32)
    key[0], key[1] = (seeds & _LOW)[:, None, None], (seeds >> _32)[:, None, None]
    words = philox4x32(counter.reshape(4, -1), key.reshape(2, -1)).reshape(4, *shape)
    in_order = np.moveaxis(words, 0, -1).reshape(*shape[:2], -1)
    return gumbel(in_order[..., :vocabulary])

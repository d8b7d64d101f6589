"""A stamp in the samples of a frame: who computed it, in which order, from which input.

The null backend writes one into every frame it emits, so that crosstalk, loss and reordering can be
seen from the outside without a model. One sample carries one bit as +-0.5, which survives 16-bit PCM
(and any float path), but not Opus.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import FloatArray
from antiphon.errors import AudioError

WordArray = NDArray[np.uint32]

MAGIC = 0xA471F09E
STAMP_WORDS = 6  # magic, life, frame, frame hash, history, check
STAMP_SAMPLES = 32 * STAMP_WORDS
_LEVEL = np.float32(0.5)
_SHIFTS = (np.uint32(16), np.uint32(13))
_FACTORS = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a stamped frame says of itself; every number is an unsigned 32-bit word.

    ``life`` counts the resets of the whole backend: it is constant within a session and differs
    between sessions. ``frame`` is the number of the answered input frame since that reset.
    ``frame_hash`` is :func:`hash_frames` of that frame, ``history`` is :func:`extend_history` over all
    frames since the reset.
    """

    life: int
    frame: int
    frame_hash: int
    history: int


def mix_words(words: WordArray) -> WordArray:
    """Scramble 32-bit words so that every bit depends on every bit (the finaliser of MurmurHash3)."""
    words = words ^ (words >> _SHIFTS[0])
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[0]
    return words


def hash_frames(pcm: FloatArray) -> WordArray:
    """Hash frames, float32 ``[n, even samples]``, to uint32 ``[n]`` by the exact bits of their samples.

    A multiply-shift hash: the sum of all 64-bit words, each times an odd constant of its own, modulo
    2^64; the upper half is kept (Dietzfelbinger et al., 1997).
    """
    words = np.ascontiguousarray(pcm).view(np.uint64)
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", words, _odd_weights(words.shape[1]))
    return (sums >> np.uint64(32)).astype(np.uint32)


def extend_history(history: WordArray, frame_hashes: WordArray) -> WordArray:
    """Fold one more frame's hash, uint32 ``[n]``, into a running history, uint32 ``[n]`` (0 at first)."""
    return mix_words(history * np.uint32(31) + frame_hashes + np.uint32(1))


def write_stamps(
    pcm: FloatArray, life: WordArray, frame: WordArray, frame_hash: WordArray, history: WordArray
) -> None:
    """Overwrite the first ``STAMP_SAMPLES`` of float32 ``pcm`` ``[n, samples]`` with a stamp per row."""
    words = np.empty((life.size, STAMP_WORDS), ">u4")
    columns = (MAGIC, life, frame, frame_hash, history, _check(life, frame, frame_hash, history))
    for place, column in enumerate(columns):
        words[:, place] = column
    pcm[:, :STAMP_SAMPLES] = _levels().take(words.view(np.uint8), axis=0).reshape(-1, STAMP_SAMPLES)


def read_stamp(pcm: FloatArray) -> Stamp:
    """Read the stamp of one frame of samples. Raises AudioError when it carries none, or a damaged one."""
    if pcm.ndim != 1 or pcm.shape[0] < STAMP_SAMPLES:
        raise AudioError(f"a stamp needs {STAMP_SAMPLES} samples, this frame is {list(pcm.shape)}")
    words = np.packbits(pcm[:STAMP_SAMPLES] > 0).view(">u4").astype(np.uint32)
    magic, life, frame, frame_hash, history, check = words[:, None]
    if magic[0] != MAGIC:
        raise AudioError(
            f"no stamp: it would begin with {MAGIC:#010x}, these samples with {int(magic[0]):#010x}"
        )
    wanted = _check(life, frame, frame_hash, history)
    if check[0] != wanted[0]:
        raise AudioError(f"a damaged stamp: its check is {int(check[0]):#010x}, not {int(wanted[0]):#010x}")
    return Stamp(int(life[0]), int(frame[0]), int(frame_hash[0]), int(history[0]))


def _check(life: WordArray, frame: WordArray, frame_hash: WordArray, history: WordArray) -> WordArray:
    return mix_words(life * _FACTORS[0] + frame * _FACTORS[1] + frame_hash) ^ history


@cache
def _levels() -> FloatArray:
    """The eight samples of each byte, float32 ``[256, 8]``."""
    levels: FloatArray = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - _LEVEL
    return levels


@cache
def _odd_weights(count: int) -> NDArray[np.uint64]:
    golden = np.uint64(0x9E3779B97F4A7C15)
    return (np.arange(1, count + 1, dtype=np.uint64) * golden) | np.uint64(1)

"""Reads the stamps that the null backend writes over its audio."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphon.backends.base import FloatArray
from antiphon.backends.null import MAGIC, STAMP_SAMPLES, check_word
from antiphon.errors import AudioError


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a stamped frame says of itself (``write_stamps``); every number is an unsigned 32-bit word."""

    life: int
    frame: int
    frame_hash: int
    history: int


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
    wanted = check_word(life, frame, frame_hash, history)
    if check[0] != wanted[0]:
        raise AudioError(f"a damaged stamp: its check is {int(check[0]):#010x}, not {int(wanted[0]):#010x}")
    return Stamp(int(life[0]), int(frame[0]), int(frame_hash[0]), int(history[0]))

"""Recordings on disk, of any common kind, as one float32 array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sphn

from antiphon.audio.ogg import GRANULE_RATE, OpusHead
from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import resample
from antiphon.errors import AudioError


def read_audio(path: Path, sample_rate: int = 24_000) -> FloatArray:
    """All of a WAV, MP3, FLAC or Ogg file as float32 ``[N]`` at ``sample_rate``, channels averaged to mono.

    The time axis is kept: sample n is the file at ``n / sample_rate`` seconds.

    Raises:
        AudioError: the file is not there, or is not audio that can be read.
    """
    try:
        pcm, rate = _read(path)
    except OSError as error:
        raise AudioError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # all that sphn raises
        raise AudioError(f"{path} is not audio that can be read: {error}") from error
    if not np.isfinite(pcm).all():
        raise AudioError(f"{path} holds samples that are not finite")
    mono = pcm[0] if pcm.shape[0] == 1 else pcm.mean(axis=0, dtype=np.float32)
    return resample(mono, rate, sample_rate)


def _read(path: Path) -> tuple[FloatArray, int]:
    """Float32 ``[channels, N]`` and its rate. sphn has a function for Opus, which keeps the pre-skip, and one
    for the rest."""
    with path.open("rb") as file:
        start = file.read(64)
    found = start.find(b"OpusHead")
    if found < 0:
        pcm, rate = sphn.read(str(path))
        return pcm, rate
    pcm, rate = sphn.read_opus(str(path))
    return pcm[:, OpusHead.from_bytes(start[found:]).pre_skip * rate // GRANULE_RATE :], rate

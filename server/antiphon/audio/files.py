"""Reads a recording of any common format from disk as one float32 array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.ogg import GRANULE_RATE, OggOpusReader, OpusHead
from antiphon.audio.opus import OpusDecoder
from antiphon.audio.resample import resample
from antiphon.audio.stream import decode_pieces, stated_rate
from antiphon.errors import AudioError


def read_audio(path: Path, sample_rate: int = 24_000) -> FloatArray:
    """Read a WAV, MP3, FLAC or Ogg file as float32 ``[N]`` at ``sample_rate``, its channels averaged to mono.

    Sample n is the file's sound at ``n / sample_rate`` seconds, in [-1, 1].

    Raises:
        AudioError: the file does not exist, or is not readable audio.
    """
    try:
        pcm, rate = _read(path)
    except OSError as error:
        raise AudioError(f"{path} cannot be read: {error.strerror}") from error
    except AudioError as error:
        raise AudioError(f"{path} is not audio that can be read: {error}") from error
    return resample(pcm, rate, sample_rate)


def _read(path: Path) -> tuple[FloatArray, int]:
    """Float32 ``[N]`` and its rate. Opus is decoded by libopus, as in a call, all other formats by FFmpeg."""
    with path.open("rb") as file:
        start = file.read(64)
        if b"OpusHead" in start:
            return _read_opus(path.read_bytes(), OpusHead.from_bytes(start[start.find(b"OpusHead") :]))
        file.seek(0)
        rate = stated_rate(file)
        return np.concatenate([np.zeros(0, np.float32), *decode_pieces(file, rate)]), rate


def _read_opus(data: bytes, head: OpusHead) -> tuple[FloatArray, int]:
    """All of an Ogg stream of Opus, after its pre-skip."""
    decoder = OpusDecoder(GRANULE_RATE)
    pieces = [np.zeros(0, np.float32), *map(decoder.decode, OggOpusReader().feed(data))]
    return np.clip(np.concatenate(pieces)[head.pre_skip :], -1.0, 1.0), GRANULE_RATE

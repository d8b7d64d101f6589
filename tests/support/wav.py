"""Reads WAV files of mono 16-bit samples."""

from __future__ import annotations

from pathlib import Path

from antiphon.arrays import FloatArray
from antiphon.audio.pcm import float_from_s16le

HEADER_BYTES = 44


def decode_wav(data: bytes) -> tuple[FloatArray, int]:
    """The samples, float32 ``[1, N]``, and their rate in Hz; a length that was not known goes to the end."""
    assert data[:4] + data[8:24] == b"RIFFWAVEfmt \x10\0\0\0\1\0\1\0"
    assert data[34:40] == b"\x10\0data"
    size = int.from_bytes(data[40:HEADER_BYTES], "little")
    return float_from_s16le(data[HEADER_BYTES:][:size])[None], int.from_bytes(data[24:28], "little")


def read_wav(path: Path) -> tuple[FloatArray, int]:
    """See :func:`decode_wav`."""
    return decode_wav(path.read_bytes())

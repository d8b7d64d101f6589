"""Writes WAV files of mono 16-bit or float32 samples."""

from __future__ import annotations

import struct
from pathlib import Path

from antiphon.audio.pcm import FloatArray, f32le_from_float, s16le_from_float

_FORMAT = struct.Struct("<HHIIHH")
_INTEGER, _FLOAT = 1, 3


def write_wav(path: Path, pcm: FloatArray, sample_rate: int, *, is_float: bool = False) -> None:
    """Write mono float32 ``[N]`` as 16-bit samples, or as float32 with ``is_float``.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    path.write_bytes(encode_wav(pcm, sample_rate, is_float=is_float))


def encode_wav(pcm: FloatArray, sample_rate: int, *, is_float: bool = False) -> bytes:
    """Encode mono float32 ``[N]`` as the bytes of a WAV file.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    code, width = (_FLOAT, 4) if is_float else (_INTEGER, 2)
    data = f32le_from_float(pcm) if is_float else s16le_from_float(pcm)
    form = _FORMAT.pack(code, 1, sample_rate, sample_rate * width, width, 8 * width)
    body = b"WAVE" + _chunk(b"fmt ", form) + _chunk(b"data", data)
    return _chunk(b"RIFF", body)


def streamed_header(sample_rate: int) -> bytes:
    """The header of a mono 16-bit WAV file of unknown length."""
    form = _FORMAT.pack(_INTEGER, 1, sample_rate, sample_rate * 2, 2, 16)
    longest = b"\xff\xff\xff\xff"
    return b"RIFF" + longest + b"WAVE" + _chunk(b"fmt ", form) + b"data" + longest


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)

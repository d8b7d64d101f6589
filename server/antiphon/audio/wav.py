"""WAV files: integer and float samples in, 16-bit or float32 out (RIFF/WAVE, WAVE_FORMAT_EXTENSIBLE)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from antiphon.audio.pcm import FloatArray, f32le_from_float, s16le_from_float
from antiphon.errors import AudioError

_FORMAT = struct.Struct("<HHIIHH")
_INTEGER, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SUB_FORMAT = slice(24, 26)  # the first two bytes of the GUID in an extensible format chunk


@dataclass(frozen=True, slots=True)
class _Format:
    """A format chunk: ``code`` is 1 for integer and 3 for float samples."""

    code: int
    channels: int
    sample_rate: int
    bits: int

    @property
    def block_bytes(self) -> int:
        return self.channels * self.bits // 8


def write_wav(path: Path, pcm: FloatArray, sample_rate: int, *, is_float: bool = False) -> None:
    """Write mono float32 ``[N]`` as 16-bit samples, or as float32 with ``is_float``.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    path.write_bytes(encode_wav(pcm, sample_rate, is_float=is_float))


def read_wav(path: Path) -> tuple[FloatArray, int]:
    """Read a file as (float32 ``[channels, N]``, sample rate in Hz).

    Raises:
        AudioError: it cannot be read, or is no WAV file of 8 to 32-bit integers or 32 or 64-bit floats.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AudioError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return decode_wav(data)
    except AudioError as error:
        raise AudioError(f"{path}: {error}") from error


def encode_wav(pcm: FloatArray, sample_rate: int, *, is_float: bool = False) -> bytes:
    """Mono float32 ``[N]`` as the bytes of a WAV file.

    Raises:
        AudioError: a sample is NaN or infinite.
    """
    code, width = (_FLOAT, 4) if is_float else (_INTEGER, 2)
    data = f32le_from_float(pcm) if is_float else s16le_from_float(pcm)
    form = _FORMAT.pack(code, 1, sample_rate, sample_rate * width, width, 8 * width)
    body = b"WAVE" + _chunk(b"fmt ", form) + _chunk(b"data", data)
    return _chunk(b"RIFF", body)


def streamed_header(sample_rate: int) -> bytes:
    """The header of a mono 16-bit WAV file whose length is not known yet."""
    form = _FORMAT.pack(_INTEGER, 1, sample_rate, sample_rate * 2, 2, 16)
    longest = b"\xff\xff\xff\xff"
    return b"RIFF" + longest + b"WAVE" + _chunk(b"fmt ", form) + b"data" + longest


def decode_wav(data: bytes) -> tuple[FloatArray, int]:
    """The bytes of a WAV file as (float32 ``[channels, N]``, sample rate in Hz); a cut-off end is left out.

    Raises:
        AudioError: no WAV file, or a kind of samples that is not known.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise AudioError(f"no WAV file: it begins with {data[:12]!r}")
    form: _Format | None = None
    for name, content in _chunks(data):
        if name == b"fmt ":
            form = _read_format(content)
        elif name == b"data" and form is not None:
            whole = len(content) // form.block_bytes * form.block_bytes
            samples = _samples(content[:whole], form)
            return np.ascontiguousarray(samples.reshape(-1, form.channels).T), form.sample_rate
    raise AudioError(
        "a WAV file without " + ("a data chunk" if form is not None else "a format chunk before its data")
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 12
    while position + 8 <= len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        yield data[position : position + 4], data[position + 8 : position + 8 + size]
        position += 8 + size + size % 2


def _read_format(content: bytes) -> _Format:
    if len(content) < _FORMAT.size:
        raise AudioError(f"a format chunk of {len(content)} bytes, {_FORMAT.size} are needed")
    code, channels, sample_rate, _, _, bits = _FORMAT.unpack_from(content)
    if code == _EXTENSIBLE:
        code = int.from_bytes(content[_SUB_FORMAT], "little")
    known = (code == _INTEGER and bits in (8, 16, 24, 32)) or (code == _FLOAT and bits in (32, 64))
    if not known or not channels or not sample_rate:
        raise AudioError(
            f"samples of kind {code} with {bits} bits, {channels} channels at {sample_rate} Hz are not known"
        )
    return _Format(code, channels, sample_rate, bits)


def _samples(content: bytes, form: _Format) -> FloatArray:
    """All samples in order, scaled to [-1, 1)."""
    if form.code == _FLOAT:
        samples = np.frombuffer(content, f"<f{form.bits // 8}").astype(np.float32)
        if not np.isfinite(samples).all():
            raise AudioError(f"one of {samples.size} samples is not finite")
        return samples
    if form.bits == 8:
        return (np.frombuffer(content, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
    if form.bits == 24:
        wide = np.zeros((len(content) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        return wide.reshape(-1).view("<i4").astype(np.float32) / np.float32(2**31)
    scale = np.float32(2 ** (form.bits - 1))
    return np.frombuffer(content, f"<i{form.bits // 8}").astype(np.float32) / scale

"""Reads a WAV piece by piece: 16-bit samples of one or two channels, at the rate in the header."""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.codec import RESAMPLED_BYTES, Decoder, SampleDecoder
from antiphon.audio.pcm import float_from_s16le
from antiphon.errors import AudioError

RATES: Final = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Accepted sample rates: those of common sound devices and telephones. The filter of any other rate takes
megabytes.
"""

MAX_HEAD_BYTES: Final = 65_536
"""Maximum bytes before the first sample, where a title or a picture may be."""

_PCM, _EXTENSIBLE = 1, 0xFFFE
_UNKNOWN = (0, 0xFFFFFFFF)  # sizes in a header that was written before the samples


class WavDecoder(Decoder):
    """Decodes a WAV in portions of any size to samples at ``rate``.

    Bytes after the size in the header are not samples; they may be titles.
    """

    piece_bytes = RESAMPLED_BYTES

    def __init__(self, rate: int) -> None:
        """Begin before the header."""
        super().__init__()
        self._rate = rate
        self._head, self._rest = bytearray(), b""
        self._at = 12  # position of the first unread chunk
        self._left: float = math.inf  # bytes of samples left
        self._channels, self._has_begun = 1, False
        self._samples: SampleDecoder | None = None

    def step(self) -> FloatArray | None:
        """Decode the next portion, float32 ``[N]``, N possibly 0; None when there is nothing to decode.

        Raises:
            AudioError: the file is not a WAV, or has another sample format.
        """
        if not self._pieces:
            return None
        data = self._pieces.popleft()
        self.has_more = bool(self._pieces)
        if not self._has_begun:
            self._head += data
            if (start := self._read_head()) is None:
                return np.zeros(0, np.float32)
            data, self._head, self._has_begun = bytes(self._head[start:]), bytearray(), True
        assert self._samples is not None
        data = data[: int(min(self._left, len(data)))]
        self._left -= len(data)
        data = self._rest + data
        end = len(data) - len(data) % (2 * self._channels)
        self._rest = data[end:]
        if self._channels == 2:
            samples = np.frombuffer(data[:end], "<i2").reshape(-1, 2)
            self._samples.put(samples.mean(axis=1).astype("<i2").tobytes())
        else:
            self._samples.put(data[:end])
        return self._samples.step()

    def _read_head(self) -> int | None:
        """The start of the samples; None until the header is complete."""
        head = self._head
        if not b"RIFF".startswith(head[:4]):
            raise AudioError("not a WAV: it does not begin with RIFF")
        while len(head) >= self._at + 8:
            at = self._at
            name, size = bytes(head[at : at + 4]), int.from_bytes(head[at + 4 : at + 8], "little")
            if name == b"data":
                if self._samples is None:
                    raise AudioError("a WAV whose samples come before their format")
                self._left = math.inf if size in _UNKNOWN else size
                return at + 8
            if name == b"fmt ":
                if len(head) < at + 24:
                    break
                self._read_format(bytes(head[at + 8 : at + 24]))
            self._at += 8 + size + size % 2
        if len(head) > MAX_HEAD_BYTES:
            raise AudioError(f"a WAV without samples in its first {MAX_HEAD_BYTES} bytes")
        return None

    def _read_format(self, fields: bytes) -> None:
        form, channels, rate, _, _, bits = struct.unpack("<HHIIHH", fields)
        if form not in (_PCM, _EXTENSIBLE) or bits != 16 or channels not in (1, 2) or rate not in RATES:
            raise AudioError(
                f"a WAV of format {form}, {bits} bits, {channels} channels, {rate} Hz; read are 16-bit "
                f"samples, 1 or 2 channels, {', '.join(map(str, RATES))} Hz"
            )
        self._channels, self._samples = channels, SampleDecoder(float_from_s16le, self._rate, rate)

"""Encodes speech as the bytes of a file while it is generated: MP3, Ogg/Opus, AAC, FLAC, WAV and PCM.

Encoding runs in the caller's thread, in steps of one frame of the model: less than 1 ms for 80 ms of speech.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from antiphon.audio.codec import Encoder
from antiphon.audio.ffmpeg import load_av
from antiphon.audio.ogg import OggEncoder
from antiphon.audio.opus import PACKET_MS
from antiphon.audio.pcm import FloatArray, s16le_from_float
from antiphon.errors import AudioError


class SampleFile(Encoder):
    """Encodes a file of 16-bit samples; the file's header comes with the first samples."""

    def __init__(self, header: Callable[[int], bytes], rate: int, _wire_rate: int) -> None:
        """``header`` returns the header of a file of this rate."""
        self._header = header(rate)

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """The bytes of ``pcm``, with the header before the first samples."""
        header, self._header = self._header, b""
        return [header + s16le_from_float(_checked(pcm))]

    def finish(self) -> list[bytes]:
        """Return the header if there were no samples."""
        return self.encode(np.zeros(0, np.float32))


class OggFile(Encoder):
    """Encodes Ogg/Opus in packets of 80 ms, the last one filled with silence."""

    def __init__(self, rate: int, wire_rate: int) -> None:
        """Begin a stream."""
        self._stream = OggEncoder(rate, wire_rate)
        self._packet_samples = rate * PACKET_MS[-1] // 1000
        self._rest: FloatArray = np.zeros(0, np.float32)

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """The packets of 80 ms that ``pcm`` completes."""
        pcm = np.concatenate((self._rest, _checked(pcm)))
        whole = pcm.size - pcm.size % self._packet_samples
        self._rest = pcm[whole:]
        packets = pcm[:whole].reshape(-1, self._packet_samples)
        return [page for packet in packets for page in self._stream.encode(packet)]

    def finish(self) -> list[bytes]:
        """The last packet and the last page."""
        last = []
        if self._rest.size:
            last = self.encode(np.zeros(self._packet_samples - self._rest.size, np.float32))
        return last + self._stream.finish()

    def close(self) -> None:
        """Free libopus's memory."""
        self._stream.close()


@dataclass(frozen=True, slots=True)
class FileRecipe:
    """FFmpeg's settings for a file format: media type, container, codec, samples, and the options of both.

    ``lead_samples`` of silence come first, so that the first frame of 80 ms fills the codec's lookahead.
    """

    content_type: str
    container: str
    codec: str
    sample_format: str
    options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)
    bit_rate: int | None = None
    lead_samples: int = 0


FILE_RECIPES: Final[Mapping[str, FileRecipe]] = MappingProxyType(
    {
        # Level 7 takes half the time of the default; a Xing frame would have to be written at the end.
        "mp3": FileRecipe(
            *("audio/mpeg", "mp3", "libmp3lame", "fltp", {"compression_level": "7"}),
            {"write_xing": "0", "id3v2_version": "0"},
            bit_rate=64_000,
        ),
        "aac": FileRecipe(
            *("audio/aac", "adts", "aac", "fltp", {"aac_coder": "fast"}), bit_rate=64_000, lead_samples=128
        ),
        # Levels above 2 make blocks of 105 ms, longer than a frame of the model.
        "flac": FileRecipe(
            *("audio/flac", "flac", "flac", "s16"),
            {"compression_level": "2"},
            {"metadata_header_padding": "0"},
        ),
    }
)


class _Growing:
    """A file without seek(), so FFmpeg writes every byte once; :meth:`take` returns the new bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Append bytes; FFmpeg calls this method."""
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class EncodedFile(Encoder):
    """Encodes a file with FFmpeg, through PyAV."""

    def __init__(self, recipe: FileRecipe, rate: int, _wire_rate: int) -> None:
        """Begin a file."""
        self._recipe, self._sample_rate = recipe, rate
        self._written = _Growing()
        self._samples = 0
        self._container = load_av().open(
            self._written, "w", format=recipe.container, options=dict(recipe.container_options)
        )
        self._stream: Any = self._container.add_stream(
            recipe.codec, rate=rate, layout="mono", options=dict(recipe.options)
        )
        context: Any = self._stream.codec_context
        context.format = recipe.sample_format
        if recipe.bit_rate is not None:
            context.bit_rate = recipe.bit_rate

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """The bytes that the codec has finished so far."""
        pcm = _checked(pcm)
        if not pcm.size:
            return []
        if not self._samples:
            pcm = np.concatenate((np.zeros(self._recipe.lead_samples, np.float32), pcm))
        samples: Any = pcm[None]
        if self._recipe.sample_format == "s16":
            samples = np.frombuffer(s16le_from_float(pcm), "<i2")[None]
        frame = load_av().AudioFrame.from_ndarray(samples, format=self._recipe.sample_format, layout="mono")
        frame.sample_rate, frame.pts = self._sample_rate, self._samples
        self._samples += pcm.size
        self._container.mux(self._stream.encode(frame))
        return [self._written.take()]

    def finish(self) -> list[bytes]:
        """The rest of the codec's output, and the end of the container; empty if there were no samples."""
        if self._samples:
            self._container.mux(self._stream.encode(None))
            self._container.close()
        return [self._written.take()]

    def close(self) -> None:
        """Free FFmpeg's memory."""
        with contextlib.suppress(load_av().FFmpegError):  # a file without samples has no trailer
            self._container.close()


def _checked(pcm: FloatArray) -> FloatArray:
    if not np.isfinite(pcm).all():
        raise AudioError("a sample to be encoded is not finite")
    clipped: FloatArray = np.clip(pcm, -1.0, 1.0)
    return clipped

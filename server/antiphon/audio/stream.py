"""A recording of any common kind, decoded piece by piece: the whole of it is never in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import av
import numpy as np

from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import MAX_RATE, MIN_RATE
from antiphon.errors import AudioError

KINDS: Final = ("wav", "flac", "mp3", "ogg")
"""Containers that are read, by FFmpeg's names. It knows others that fetch what they name: those must not be
opened with what a stranger sent, so the container is told by its first bytes and never guessed."""

CODECS: Final = ("flac", "mp3", "mp3float", "opus", "libopus", "vorbis")
"""What may be in them, besides PCM."""

MAX_CHANNELS: Final = 8
"""Surround sound has so many; each is decoded before they become one."""

_HEAD_BYTES: Final = 12


def container_of(head: bytes) -> str:
    """Which of ``KINDS`` begins like this.

    Raises:
        AudioError: none of them.
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"fLaC":
        return "flac"
    if head[:4] == b"OggS":
        return "ogg"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2):
        return "mp3"
    raise AudioError(f"this is no recording that can be read: WAV, FLAC, MP3 or Ogg; it begins {head[:4]!r}")


def stated_seconds(file: BinaryIO) -> float | None:
    """How long a recording is by its own header; None where only decoding tells. Nothing is decoded.

    Raises:
        AudioError: no audio that can be read, or of a rate or with channels out of range.
    """
    with _opened(file) as (container, stream):
        is_stated = container.format.name in ("wav", "flac")  # elsewhere it is an estimate
        if not is_stated or stream.duration is None:
            return None
        seconds = float(stream.duration * stream.time_base)
        bits_per_s = stream.codec_context.bit_rate
        # A WAV that was written as it was recorded may state more than there is.
        return min(seconds, container.size * 8 / bits_per_s) if bits_per_s else seconds


def decode_pieces(file: BinaryIO, sample_rate: int) -> Iterator[FloatArray]:
    """The audio of a file as float32 ``[N]``, mono, in [-1, 1], at ``sample_rate``, a packet or so at a time.

    Raises:
        AudioError: no audio that can be read, of a rate or with channels out of range, or damaged beyond use.
    """
    with _opened(file) as (container, stream):
        resampler = av.AudioResampler(format="fltp", rate=sample_rate)
        for frame in container.decode(stream):
            _check_shape(frame.sample_rate, len(frame.layout.channels))  # it may change on the way
            yield from map(_samples, resampler.resample(frame))
        yield from map(_samples, resampler.resample(None))


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """The container in a file and its audio, whose header was checked; FFmpeg's errors become ours."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    kind = container_of(head)
    try:
        with av.open(file, mode="r", format=kind) as container:
            if not container.streams.audio:
                raise AudioError("there is no audio in this file")
            stream = container.streams.audio[0]
            name = stream.codec_context.name
            if name not in CODECS and not name.startswith("pcm_"):
                raise AudioError(f"audio of kind {name!r} is not read; there are: PCM, {', '.join(CODECS)}")
            _check_shape(stream.codec_context.sample_rate, stream.codec_context.channels)
            yield container, stream
    except (av.FFmpegError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise AudioError(f"this {kind} file cannot be read: {why}") from error
    finally:
        file.seek(0)


def _check_shape(rate: int, channels: int) -> None:
    """A second of audio at 1 Hz would become a second of work for every byte."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise AudioError(f"audio at {rate} Hz is not read; there is: {MIN_RATE} to {MAX_RATE} Hz")
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioError(f"audio of {channels} channels is not read; there is: 1 to {MAX_CHANNELS}")


def _samples(frame: Any) -> FloatArray:
    pcm = frame.to_ndarray().mean(axis=0, dtype=np.float32)  # FFmpeg's own mono is 3 dB louder
    if not np.isfinite(pcm).all():
        raise AudioError("this file holds samples that are not finite")
    clipped: FloatArray = np.clip(pcm, -1.0, 1.0)
    return clipped

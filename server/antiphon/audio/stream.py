"""A recording of any common kind, decoded piece by piece: the whole of it is never in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import av
import numpy as np

from antiphon.audio.mp4 import check_mp4
from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import MAX_RATE, MIN_RATE
from antiphon.errors import AudioError

KINDS: Final = ("wav", "flac", "mp3", "ogg", "mp4", "webm", "aac")
"""Containers that are read, by FFmpeg's names. It knows others that fetch what they name: those must not be
opened with what a stranger sent, so the container is read from its first bytes, not from a name."""

NAMES: Final = "WAV, FLAC, MP3, Ogg, MP4, WebM or AAC"

CODECS: Final = ("aac", "alac", "flac", "mp3", "mp3float", "opus", "libopus", "vorbis")
"""What may be in them, besides PCM."""

MAX_CHANNELS: Final = 8
"""Surround sound has so many; each is decoded before they become one."""

_HEAD_BYTES: Final = 12
_STATED: Final = ("wav", "flac", "mp4")
"""Containers whose header states a length; elsewhere it is an estimate."""

_MOST_READ: Final = 2
_SLACK_BYTES: Final = 1_048_576
"""Packets hold what the file holds, and a little; a header may state that they lie upon each other, and WebM
may have them compressed."""

_OPTIONS: Final = {"protocol_whitelist": "none", "enable_drefs": "0"}
"""Nothing that a file names is opened."""


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
    if head[4:8] == b"ftyp":
        return "mp4"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "webm"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2):
        return "mp3"
    raise AudioError(f"this is no recording that can be read: {NAMES}; it begins {head[:4]!r}")


def stated_seconds(file: BinaryIO) -> float | None:
    """How long a recording is by its own header; None where only decoding tells. Nothing is decoded.

    Raises:
        AudioError: no audio that can be read, or of a rate or with channels out of range.
    """
    with _opened(file) as (container, stream):
        if container.format.name not in _STATED or (stream.duration or 0) <= 0:  # MP4 may state any
            return None
        seconds = float(stream.duration * stream.time_base)
        bits_per_s = stream.codec_context.bit_rate
        # A WAV that was written as it was recorded may state more than there is.
        return min(seconds, container.size * 8 / bits_per_s) if bits_per_s else seconds


def stated_rate(file: BinaryIO) -> int:
    """The sample rate of a recording by its own header, in Hz. Nothing is decoded.

    Raises:
        AudioError: no audio that can be read, or of a rate or with channels out of range.
    """
    with _opened(file) as (_, stream):
        return int(stream.codec_context.sample_rate)


def decode_pieces(file: BinaryIO, sample_rate: int) -> Iterator[FloatArray]:
    """The audio of a file as float32 ``[N]``, mono, in [-1, 1], at ``sample_rate``, a packet at a time.

    N is 0 for a packet that brings no audio, of which a file may have any number.

    Raises:
        AudioError: no audio that can be read, of a rate or with channels out of range, or damaged beyond use.
    """
    with _opened(file) as (container, stream):
        resampler = av.AudioResampler(format="fltp", rate=sample_rate)
        bytes_left = _MOST_READ * container.size + _SLACK_BYTES
        for packet in container.demux():
            bytes_left -= packet.size
            if bytes_left < 0:
                raise AudioError(
                    f"the packets of this file have over {_MOST_READ} times its {container.size} bytes"
                )
            pieces: list[FloatArray] = [np.zeros(0, np.float32)]
            for frame in packet.decode() if packet.stream is stream else ():
                _check_shape(frame.sample_rate, len(frame.layout.channels))  # it may change on the way
                pieces += map(_samples, resampler.resample(frame))
            yield np.concatenate(pieces)
        yield from map(_samples, resampler.resample(None))


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """The container in a file and its audio, whose header was checked; FFmpeg's errors become ours."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    kind = container_of(head)
    if kind == "mp4":
        check_mp4(file)
    try:
        with av.open(file, mode="r", format=kind, options=_OPTIONS) as container:
            if not container.streams.audio:
                raise AudioError("there is no audio in this file")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise AudioError("audio of an unknown kind is not read; there are: PCM, " + ", ".join(CODECS))
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

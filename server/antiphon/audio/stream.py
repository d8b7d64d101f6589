"""Decodes a recording of any common format piece by piece, without the whole recording in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np

from antiphon.audio.ffmpeg import load_av
from antiphon.audio.mp4 import check_mp4
from antiphon.audio.pcm import FloatArray
from antiphon.audio.resample import MAX_RATE, MIN_RATE
from antiphon.errors import AudioError

NAMES: Final = "WAV (RF64, W64), AIFF, CAF, FLAC, MP3, Ogg, MP4, WebM or AAC"
"""Containers that are accepted. FFmpeg also supports containers that fetch other files, which an untrusted
client's file must not do; so the container is detected from the first bytes, not from a name."""

CODECS: Final = (
    *("aac", "alac", "flac", "mp3", "mp3float", "opus", "libopus", "vorbis"),
    *("adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "gsm", "gsm_ms"),
)
"""Accepted codecs, in addition to PCM."""

MAX_CHANNELS: Final = 8
"""Maximum number of channels (surround sound); all of them are decoded before mixing."""

MIN_GAP_S: Final = 0.04
MAX_GAP_S: Final = 60.0
"""Longest jump of a recording's clock that becomes silence, in seconds. A longer jump is not a gap but an
error of the clock.
"""

_HEAD_BYTES: Final = 12
_STATED: Final = ("wav", "w64", "aiff", "caf", "flac", "mp4")
"""Containers whose header states a length; in others the length is an estimate."""

_CANCELLED: Final = 0.02
"""Share of the loudest channel's energy, -17 dB, below which the server assumes that the channels cancel each
other out.
"""

_MAGIC: Final = {b"riff": "w64", b"caff": "caf", b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "webm"}

_MOST_READ: Final = 2
_SLACK_BYTES: Final = 1_048_576
"""Limits on the bytes of all packets: a header may let packets overlap, and WebM may compress them."""

_OPTIONS: Final = {"protocol_whitelist": "none", "enable_drefs": "0"}
"""Options that keep FFmpeg from opening other files."""


MIN_REST_S: Final = 1.0
_INDEX: Final = (b"\x1c\x53\xbb\x6b", b"\x12\x54\xc3\x67", b"\x10\x43\xa7\x70", b"\x19\x41\xa4\x69")
_INDEX_WITHIN: Final = 64
"""Bytes after the last packet of a WebM file that last longer than ``MIN_REST_S`` are an unreadable end,
unless an index, tags, chapters or attachments begin there.
"""


@dataclass(slots=True)
class Damage:
    """The parts of a recording that could not be decoded: packets, and the seconds of silence in their place.

    ``rest_s`` is the approximate length of the recording's unreadable end, in seconds.
    """

    packets: int = 0
    seconds: float = 0.0
    rest_s: float = 0.0

    def __bool__(self) -> bool:
        """Whether any part is damaged."""
        return bool(self.packets or self.seconds or self.rest_s)


def container_of(head: bytes) -> str:
    """FFmpeg's name of the container that a file's first bytes match.

    Raises:
        AudioError: they match none of ``NAMES``.
    """
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[:4] in _MAGIC:
        return _MAGIC[head[:4]]
    if head[4:8] == b"ftyp":
        return "mp4"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0:
        return "aac"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2):
        return "mp3"
    raise AudioError(f"this is no recording that can be read: {NAMES}; it begins {head[:4]!r}")


def stated_seconds(file: BinaryIO) -> float | None:
    """The length of a recording according to its header, without decoding; None if only decoding can
    determine it.

    Raises:
        AudioError: no readable audio, or the rate or the channels are out of range.
    """
    with _opened(file) as (container, stream):
        if container.format.name not in _STATED or (stream.duration or 0) <= 0:  # an MP4 may state any length
            return None
        seconds = float(stream.duration * stream.time_base)
        bits_per_s = stream.codec_context.bit_rate
        # A WAV that was written during recording may state more than there is.
        return min(seconds, container.size * 8 / bits_per_s) if bits_per_s else seconds


def stated_rate(file: BinaryIO) -> int:
    """The sample rate of a recording according to its header, in Hz, without decoding.

    Raises:
        AudioError: no readable audio, or the rate or the channels are out of range.
    """
    with _opened(file) as (_, stream):
        return int(stream.codec_context.sample_rate)


def decode_pieces(file: BinaryIO, sample_rate: int, damage: Damage | None = None) -> Iterator[FloatArray]:
    """The audio of a file as float32 ``[N]``, mono, in [-1, 1], at ``sample_rate``, a packet at a time.

    N is 0 for a packet without audio; a file may have any number of such packets. Decoding continues after a
    damaged packet, with silence in its place, and ends with the container; ``damage`` counts the packets and
    the silence. The length of the silence follows the recording's clock, or, for an MP3, which has no clock,
    the bytes of its packets.

    Raises:
        AudioError: no readable audio, or the rate or the channels are out of range.
    """
    damage = Damage() if damage is None else damage
    with _opened(file) as (container, stream):
        pace = _Pace()
        converter = _Converter(sample_rate, pace if container.format.name == "mp3" else None)
        bytes_left = _MOST_READ * container.size + _SLACK_BYTES
        try:
            for packet in container.demux():
                bytes_left -= packet.size
                if bytes_left < 0:
                    raise AudioError(
                        f"the packets of this file have over {_MOST_READ} times its {container.size} bytes"
                    )
                frames: Iterable[Any] = ()
                try:
                    if packet.stream is stream:
                        frames = packet.decode()
                        pace.decoded(packet)
                except load_av().FFmpegError:
                    damage.packets += 1
                    converter.is_late = True
                    pace.lost(packet)
                yield np.concatenate([np.zeros(0, np.float32), *_converted(converter, frames, damage)])
        except load_av().FFmpegError:  # the rest of the container is unreadable
            damage.packets += 1
        yield from converter.flush()
        if "webm" in container.format.name:
            damage.rest_s = pace.rest_s(file)
        if damage.packets and not converter.has_audio:
            raise AudioError(f"this file cannot be read: none of its {damage.packets} packets can be decoded")


def _converted(converter: _Converter, frames: Iterable[Any], damage: Damage) -> Iterator[FloatArray]:
    for frame in frames:
        _check_shape(frame.sample_rate, len(frame.layout.channels))  # the format may change within a file
        gap_s = converter.gap_before(frame)
        if gap_s:
            damage.seconds += gap_s
            yield np.zeros(round(gap_s * converter.rate), np.float32)
        yield from converter.convert(frame)


class _Pace:
    """The bytes per second of a recording so far, and the position in the file where its packets end."""

    def __init__(self) -> None:
        self._bytes = self._lost = self._end = 0
        self._seconds = self._frame_s = 0.0

    def decoded(self, packet: Any) -> None:
        """Count a decoded packet."""
        if packet.size and packet.duration:
            self._frame_s = float(packet.duration * packet.time_base)
            self._bytes, self._seconds = self._bytes + packet.size, self._seconds + self._frame_s
            self._reach(packet)

    def lost(self, packet: Any) -> None:
        """Count a damaged packet."""
        self._lost += packet.size
        self._reach(packet)

    def gap_s(self) -> float:
        """The seconds lost since the last gap, in whole frames."""
        lost, self._lost = self._lost, 0
        if not (lost and self._bytes):
            return 0.0
        return round(lost / self._bytes * self._seconds / self._frame_s) * self._frame_s

    def rest_s(self, file: BinaryIO) -> float:
        """The seconds of a WebM file after its last packet that could not be read."""
        rest = file.seek(0, os.SEEK_END) - self._end
        file.seek(self._end)
        head = file.read(_INDEX_WITHIN)
        if not (self._bytes and self._end) or any(name in head for name in _INDEX):
            return 0.0
        rest_s = rest / self._bytes * self._seconds
        return rest_s if rest_s > MIN_REST_S else 0.0

    def _reach(self, packet: Any) -> None:
        if packet.pos is not None:
            self._end = max(self._end, packet.pos + packet.size)


class _Converter:
    """Converts frames of any format to mono at one rate, and tracks the time that they reach.

    The time is that of the frames, or of their ``pace`` if they have none.
    """

    def __init__(self, rate: int, pace: _Pace | None) -> None:
        self.rate, self._pace = rate, pace
        self.is_late = self.has_audio = False
        self._form: tuple[str, str, int] | None = None
        self._resampler: Any = None
        self._mixer = _Mixer()
        self._until_s: float | None = None

    def gap_before(self, frame: Any) -> float:
        """Seconds without audio before a frame: of damaged packets, or of packets that the container lost."""
        least_s, self.is_late = (0.0 if self.is_late else MIN_GAP_S), False
        if self._pace is not None:
            return min(self._pace.gap_s(), MAX_GAP_S)
        if frame.time is None or self._until_s is None:
            return 0.0
        gap_s: float = frame.time - self._until_s
        return gap_s if least_s < gap_s <= MAX_GAP_S else 0.0

    def convert(self, frame: Any) -> Iterator[FloatArray]:
        """The audio that a frame completes."""
        if (begin_s := self._until_s if frame.time is None else frame.time) is not None:
            self._until_s = begin_s + frame.samples / frame.sample_rate
        form = frame.format.name, frame.layout.name, frame.sample_rate
        if form != self._form:
            yield from self.flush()
            self._form, self._resampler = form, load_av().AudioResampler(format="fltp", rate=self.rate)
        for resampled in self._resampler.resample(frame):
            yield self._samples(resampled)

    def flush(self) -> Iterator[FloatArray]:
        """The rest of the audio of the format that ends."""
        if self._resampler is not None:
            for resampled in self._resampler.resample(None):
                yield self._samples(resampled)

    def _samples(self, frame: Any) -> FloatArray:
        channels = frame.to_ndarray()
        if not np.isfinite(channels).all():
            raise AudioError("this file holds samples that are not finite")
        self.has_audio |= channels.size > 0
        clipped: FloatArray = np.clip(self._mixer.mix(channels), -1.0, 1.0)
        return clipped


class _Mixer:
    """Mixes channels to one, each weighted by its share of the energy so far.

    Speech in one of six channels keeps its loudness; equal channels become their mean. FFmpeg's own mono is 3
    dB louder. If the channels cancel each other out, only the loudest is used.
    """

    def __init__(self) -> None:
        self._energy = np.zeros(0)
        self._mixed = 0.0

    def mix(self, channels: FloatArray) -> FloatArray:
        """Map ``[C, N]`` to ``[N]``."""
        if len(channels) == 1:
            only: FloatArray = channels[0]
            return only
        if len(channels) != self._energy.size:
            self._energy, self._mixed = np.zeros(len(channels)), 0.0
        self._energy += np.square(channels, dtype=np.float64).sum(axis=1)
        total = self._energy.sum()
        shares = self._energy / total if total else np.full(len(channels), 1 / len(channels))
        mixed: FloatArray = (shares.astype(np.float32)[:, None] * channels).sum(axis=0, dtype=np.float32)
        self._mixed += float(np.square(mixed, dtype=np.float64).sum())
        loudest: FloatArray = channels[int(self._energy.argmax())]
        return loudest if self._mixed < _CANCELLED * self._energy.max() else mixed


@contextlib.contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """Open the container of a file whose header was checked; FFmpeg's errors become AudioError."""
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    kind = container_of(head)
    if kind == "mp4":
        check_mp4(file)
    try:
        with load_av().open(file, mode="r", format=kind, options=_OPTIONS) as container:
            if not container.streams.audio:
                raise AudioError("there is no audio in this file")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise AudioError(
                    "audio of an unknown kind is not supported; there are: PCM, " + ", ".join(CODECS)
                )
            name = stream.codec_context.name
            if name not in CODECS and not name.startswith("pcm_"):
                raise AudioError(
                    f"audio of kind {name!r} is not supported; there are: PCM, {', '.join(CODECS)}"
                )
            _check_shape(stream.codec_context.sample_rate, stream.codec_context.channels)
            yield container, stream
    except (load_av().FFmpegError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise AudioError(f"this {kind} file cannot be read: {why}") from error
    finally:
        file.seek(0)


def _check_shape(rate: int, channels: int) -> None:
    """Check the rate and the channels: at 1 Hz every byte would become a second of audio."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise AudioError(f"audio at {rate} Hz is not supported; there is: {MIN_RATE} to {MAX_RATE} Hz")
    if not 1 <= channels <= MAX_CHANNELS:
        raise AudioError(f"audio of {channels} channels is not supported; there is: 1 to {MAX_CHANNELS}")

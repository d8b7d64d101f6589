"""Recorded speech, cut to length and encoded once into the messages that every session sends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.errors import AudioError, ConfigError
from antiphon.protocol import kyutai
from antiphon.protocol.chat import AudioFormat
from antiphon.protocol.moshi import Audio, encode
from antiphon_client.encoding import FRAME_SAMPLES, PACKET_MS, SAMPLE_RATE, MessageEncoder
from antiphon_client.record import Samples

MESSAGE_MS = {
    AudioFormat.OGG: 40,  # the stock web client's pages
    AudioFormat.OPUS: PACKET_MS,  # the shortest; 40 and 80 are one packet, too
    AudioFormat.PCM_S16LE: 80,
    AudioFormat.PCM_F32LE: 80,
}
"""Default length of the audio in one message, in ms."""

QUESTION = "question-name.ogg"
ANSWER_S = 3.0
"""Seconds of silence after the question: the default model's answer takes two seconds."""


@dataclass(frozen=True, slots=True)
class EncodedClip:
    """A clip as WebSocket messages, tags included, of ``message_samples`` samples each."""

    format: AudioFormat
    messages: tuple[bytes, ...]
    message_samples: int
    frames: int

    @property
    def message_s(self) -> float:
        """Seconds of audio in one message, and the time between two messages."""
        return self.message_samples / SAMPLE_RATE

    @property
    def seconds(self) -> float:
        """Total length of the audio, in seconds."""
        return len(self.messages) * self.message_s


def default_clips() -> list[Traversable]:
    """The clips of this package, sorted by name; empty if there are none."""
    folder = resources.files("antiphon_client").joinpath("clips")
    if not folder.is_dir():
        return []
    found = [item for item in folder.iterdir() if item.name.endswith((".ogg", ".wav", ".flac"))]
    return sorted(found, key=lambda item: item.name)


def load_clip(path: Path | None) -> Samples:
    """Speech from a file (WAV, MP3, FLAC, Ogg) or, without one, the first clip of the package.

    Returns:
        float32 ``[samples]`` in [-1, 1] at 24 kHz, mono.

    Raises:
        AudioError: the file cannot be read, or has no samples.
    """
    if path is not None:
        return _not_empty(read_audio(path), str(path))
    clips = default_clips()
    if not clips:
        raise AudioError("this installation has no built-in clip; name a recording with --audio FILE")
    with resources.as_file(clips[0]) as file:
        return _not_empty(read_audio(file), clips[0].name)


def load_question() -> Samples:
    """A recorded question that the default model answers, followed by silence for the answer.

    Returns:
        float32 ``[samples]`` at 24 kHz, mono.

    Raises:
        AudioError: no clips are installed.
    """
    with resources.as_file(resources.files("antiphon_client") / "clips" / QUESTION) as file:
        asked = _not_empty(read_audio(file), QUESTION)
    return np.concatenate([asked, np.zeros(round(ANSWER_S * SAMPLE_RATE), np.float32)])


def fit_clip(pcm: Samples, seconds: float | None) -> Samples:
    """Repeat or cut ``pcm`` to ``seconds`` (None: unchanged), and pad its last frame with silence."""
    wanted = pcm.size if seconds is None else max(1, round(seconds * SAMPLE_RATE))
    repeated = np.tile(pcm, math.ceil(wanted / pcm.size))[:wanted]
    return np.pad(repeated, (0, -wanted % FRAME_SAMPLES)).astype(np.float32, copy=False)


def encode_clip(pcm: Samples, audio_format: AudioFormat, *, message_ms: int | None = None) -> EncodedClip:
    """Encode whole frames of speech into messages of ``message_ms`` (default: :data:`MESSAGE_MS`).

    ``pcm`` is float32 ``[frames * 1920]``.

    Raises:
        ConfigError: messages of that length do not divide a frame, or are invalid for the format.
    """
    message_ms = message_ms or MESSAGE_MS[audio_format]
    if message_ms not in (20, 40, 80):
        raise ConfigError(f"{audio_format} messages hold 20, 40 or 80 ms of audio, got {message_ms} ms")
    message_samples = message_ms * SAMPLE_RATE // 1000
    chunks = np.split(pcm, range(message_samples, pcm.size, message_samples))
    encoder = MessageEncoder(audio_format)
    return EncodedClip(
        format=audio_format,
        messages=tuple(encode(Audio(encoder.encode(chunk))) for chunk in chunks),
        message_samples=message_samples,
        frames=pcm.size // FRAME_SAMPLES,
    )


def encode_speech(pcm: Samples, *, message_ms: int | None = None) -> EncodedClip:
    """A clip of whole frames, float32 ``[samples]``, as audio messages of ``/api/asr-streaming``.

    Raises:
        ConfigError: the message length is not from 1 ms to a second.
    """
    message_ms = message_ms or MESSAGE_MS[AudioFormat.PCM_F32LE]
    if not 1 <= message_ms <= 1000:
        raise ConfigError(f"messages of speech to text hold 1 to 1000 ms of audio, got {message_ms} ms")
    message_samples = message_ms * SAMPLE_RATE // 1000
    chunks = np.split(pcm, range(message_samples, pcm.size, message_samples))
    return EncodedClip(
        format=AudioFormat.PCM_F32LE,
        messages=tuple(kyutai.encode(kyutai.Audio(chunk)) for chunk in chunks),
        message_samples=message_samples,
        frames=pcm.size // FRAME_SAMPLES,
    )


def _not_empty(pcm: Samples, name: str) -> Samples:
    if pcm.size == 0:
        raise AudioError(f"{name} holds 0 samples of audio")
    return pcm

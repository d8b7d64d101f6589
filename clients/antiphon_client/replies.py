"""Replies: the length of a payload's audio without decoding it, and the whole reply as sound."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from antiphon.audio.codecs import make_decoder
from antiphon.audio.ogg import OggOpusReader
from antiphon.errors import AudioError
from antiphon.protocol.chat import AudioFormat
from antiphon_client.encoding import SAMPLE_RATE
from antiphon_client.record import Samples

_BYTES_PER_SAMPLE = {AudioFormat.PCM_S16LE: 2, AudioFormat.PCM_F32LE: 4}


class ReplyMeter:
    """Counts the samples in the audio payloads of one session, in order, without decoding them."""

    def __init__(self, audio_format: AudioFormat) -> None:
        """Start at the beginning of a stream."""
        self._format = audio_format
        self._ogg = OggOpusReader() if audio_format is AudioFormat.OGG else None

    def samples(self, payload: bytes) -> int:
        """The number of samples at 24 kHz in the next payload.

        Raises:
            AudioError: the payload is not in the session's format.
        """
        if self._ogg is not None:
            return sum(opus_packet_samples(packet) for packet in self._ogg.feed(payload))
        if self._format is AudioFormat.OPUS:
            return opus_packet_samples(payload)
        size = _BYTES_PER_SAMPLE[self._format]
        if len(payload) % size:
            raise AudioError(f"{len(payload)} bytes are no whole number of {self._format} samples")
        return len(payload) // size


def opus_packet_samples(packet: bytes) -> int:
    """Samples at 24 kHz in one Opus packet, from its first bytes (RFC 6716, section 3.1).

    Raises:
        AudioError: the packet is empty, or ends before its frame count.
    """
    if not packet:
        raise AudioError("an Opus packet of 0 bytes")
    configuration, code = packet[0] >> 3, packet[0] & 3
    if configuration < 12:
        frame_us = (10_000, 20_000, 40_000, 60_000)[configuration % 4]
    elif configuration < 16:
        frame_us = (10_000, 20_000)[configuration % 2]
    else:
        frame_us = (2_500, 5_000, 10_000, 20_000)[configuration % 4]
    if code == 3 and len(packet) < 2:
        raise AudioError("an Opus packet of 1 byte whose frame count is missing")
    frames = (1, 2, 2, packet[1] & 0x3F if code == 3 else 0)[code]
    return frames * frame_us * SAMPLE_RATE // 1_000_000


def decode_replies(payloads: Iterable[bytes], audio_format: AudioFormat) -> Samples:
    """One session's whole reply as float32 ``[samples]`` at 24 kHz.

    Raises:
        AudioError: a payload cannot be decoded.
    """
    decoder = make_decoder(audio_format)
    pieces = [decoder.feed(payload) for payload in payloads]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

"""Encodes chunks of samples into the payloads of audio messages, in any format of ``/api/chat``."""

from __future__ import annotations

import numpy as np

from antiphon.audio.codecs import make_encoder
from antiphon.audio.ogg import OggOpusWriter
from antiphon.audio.opus import OpusEncoder
from antiphon.protocol.chat import AudioFormat
from antiphon_client.record import Samples

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 1920
PACKET_MS = 20
PACKET_SAMPLES = PACKET_MS * SAMPLE_RATE // 1000
"""A packet of an Ogg page."""


class MessageEncoder:
    """Encodes one stream, a message at a time; the server must decode the messages in the same order.

    Ogg pages have packets of 20 ms, as in the stock web client; the server's codec ``ogg`` would make one
    longer packet.
    """

    def __init__(self, audio_format: AudioFormat) -> None:
        """Start a stream."""
        self._format = audio_format
        self._pcm = make_encoder(audio_format) if audio_format.startswith("pcm") else None
        self._opus = OpusEncoder(SAMPLE_RATE)
        self._ogg = OggOpusWriter(1, SAMPLE_RATE, pre_skip=self._opus.lookahead_samples)
        self._headers = self._ogg.headers()

    def encode(self, pcm: Samples) -> bytes:
        """The payload of one message.

        ``pcm`` is float32 ``[samples]``: 480, 960 or 1920 of them for opus, which become one packet; a
        multiple of 480 for ogg, any number for pcm.
        """
        if self._pcm is not None:
            return b"".join(self._pcm.encode(pcm))
        if self._format is AudioFormat.OPUS:
            return self._opus.encode(pcm)
        packets = [self._opus.encode(part) for part in np.split(pcm, pcm.size // PACKET_SAMPLES)]
        headers, self._headers = self._headers, b""
        return headers + self._ogg.page(packets, pcm.size)

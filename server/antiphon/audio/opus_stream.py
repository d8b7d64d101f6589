"""Opus as it travels: one packet a message, or pieces of one Ogg stream."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from antiphon.audio.codec import Decoder, Encoder
from antiphon.audio.ogg import OggOpusReader, OggOpusWriter
from antiphon.audio.opus import PACKET_MS, OpusDecoder, OpusEncoder
from antiphon.audio.packets import join_packets, packet_ms, split_packet
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AudioError

MAX_FEED_S: Final = 60
"""Seconds in one message: two bytes of Opus can stand for 120 ms, so bytes alone bound nothing."""

PIECE_BYTES: Final = 4096
"""Bytes of an Ogg stream taken apart in one step, 0.1 ms; the packets of a page that they complete wait."""

STEP_SAMPLES: Final = 12_000
"""Half a second decoded in one step: 0.5 ms."""

STEP_PACKETS: Final = 32
"""Packets decoded in one step: short ones cost more by number than by length."""

PACKET_SPAN_MS: Final = 20
"""Audio in each packet that :class:`PacketEncoder` makes."""


class PacketDecoder(Decoder):
    """One packet a message; short ones are decoded together."""

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus decodes to any of its rates."""
        super().__init__()
        self._opus, self._rate = OpusDecoder(rate), rate
        self._waiting_samples = 0

    def feed(self, data: bytes) -> FloatArray:
        """One packet."""
        return self._opus.decode(data)

    def put(self, data: bytes) -> None:
        """Gather a packet; one that says that it holds nothing is broken, and waits for no other."""
        self._pieces.append(data)
        self._waiting_samples += round(packet_ms(data) * self._rate / 1000) or self._rate

    def _step(self) -> FloatArray | None:
        if not self._pieces:
            return None
        packets, self._waiting_samples = join_packets(tuple(self._pieces)), 0
        self._pieces.clear()
        return self.feed(packets[0]) if len(packets) == 1 else np.concatenate(list(map(self.feed, packets)))

    @property
    def has_more(self) -> bool:
        """What waits is gathered."""
        return False

    def close(self) -> None:
        """Give libopus its memory back."""
        self._opus.close()


class PacketEncoder(Encoder):
    """Any multiple of 20 ms, one packet each."""

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus encodes from any of its rates."""
        self._opus = OpusEncoder(rate)
        self._packet_samples = rate * PACKET_SPAN_MS // 1000
        self._call_samples = tuple(
            rate * milliseconds // 1000 for milliseconds in sorted(PACKET_MS, reverse=True)
        )

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """Whole packets."""
        if not pcm.size or pcm.size % self._packet_samples:
            raise AudioError(f"{pcm.size} samples are no whole number of packets of {self._packet_samples}")
        packets: list[bytes] = []
        start = 0
        while start < pcm.size:
            # As much as one call can take, and then as the protocol wants it: see audio/packets.py.
            samples = next(size for size in self._call_samples if size <= pcm.size - start)
            packets += split_packet(self._opus.encode(pcm[start : start + samples]))
            start += samples
        return packets

    def close(self) -> None:
        """Give libopus its memory back."""
        self._opus.close()


class OggDecoder(Decoder):
    """Pieces of one Ogg/Opus stream.

    It decodes to what upstream's servers hear: no pre-skip is cut off, nothing is clipped, and a new stream
    in the same session goes on with the same decoder.
    """

    piece_bytes = PIECE_BYTES

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus decodes to any of its rates."""
        super().__init__()
        self._opus, self._reader = OpusDecoder(rate), OggOpusReader()
        self._max_samples = MAX_FEED_S * rate
        self._packets: deque[bytes] = deque()

    def feed(self, data: bytes) -> FloatArray:
        """The packets that a piece completes."""
        found: list[FloatArray] = [np.zeros(0, np.float32)]
        total = 0
        for packet in self._reader.feed(data):
            found.append(self._opus.decode(packet))
            total += found[-1].size
            if total > self._max_samples:
                raise AudioError(
                    f"a message of {len(data)} bytes holds more than {self._max_samples} samples"
                )
        return np.concatenate(found)

    def _step(self) -> FloatArray | None:
        if not self._packets:
            if not self._pieces:
                return None
            self._packets.extend(self._reader.feed(self._pieces.popleft()))
        found: list[FloatArray] = []
        samples = 0
        while self._packets and samples < STEP_SAMPLES and len(found) < STEP_PACKETS:
            found.append(self._opus.decode(self._packets.popleft()))
            samples += found[-1].size
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    @property
    def has_more(self) -> bool:
        """Packets of a page wait too."""
        return bool(self._pieces or self._packets)

    def close(self) -> None:
        """Give libopus its memory back."""
        self._opus.close()


class OggEncoder(Encoder):
    """One Ogg/Opus stream: 20, 40 or 80 ms at a time, in one packet on one page; its headers come first."""

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus encodes from any of its rates."""
        self._opus = OpusEncoder(rate)
        self._ogg = OggOpusWriter(1, rate, pre_skip=self._opus.lookahead_samples)
        self._headers = self._ogg.headers()

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """One page."""
        page = self._ogg.page([self._opus.encode(pcm)], pcm.size)
        headers, self._headers = self._headers, b""
        return [headers + page]

    def finish(self) -> list[bytes]:
        """The last page, if there was a first."""
        return [] if self._headers else [self._ogg.finish()]

    def close(self) -> None:
        """Give libopus its memory back."""
        self._opus.close()

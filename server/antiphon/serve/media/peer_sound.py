"""Sound of a peer connection: Opus packets received by RTP, and packets sent on time.

The call has samples in both directions, 16-bit at 24 kHz. Received packets are ordered and lost ones
concealed; sound is sent as one packet each 20 ms of the server's clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from antiphon.audio.opus import MAX_PACKET_BYTES, SAMPLE_RATE, OpusDecoder, PacketEncoder, packet_ms
from antiphon.audio.packet_order import PacketOrder
from antiphon.audio.pcm import FloatArray, float_from_s16le, s16le_from_float
from antiphon.errors import AudioError

PACKET_S: Final = 0.02
PACKET_BYTES: Final = 2 * round(SAMPLE_RATE * PACKET_S)
RTP_RATE: Final = 48_000
"""Units a second of the timestamps in RTP packets of Opus, for any sample rate (RFC 7587)."""

MOST_CONCEALED: Final = 5
"""Consecutive lost packets that are concealed; libopus conceals further packets with silence."""

MOST_AHEAD_S: Final = 1.0
"""Seconds of sound that may arrive ahead of the clock; sound beyond that is dropped before it is decoded."""

MOST_WAITING: Final = 20
KEPT_WAITING: Final = 8
"""Maximum packets that wait to be sent (0.4 s), and the number that is kept when there are more (0.16 s). A
burst of late sound therefore delays later sound only briefly.
"""

MOST_LATE_S: Final = 0.1
"""Delay in seconds after which the sender continues at its normal rate, without a burst."""


class IncomingSound:
    """The sound received from one peer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` limits the decoded amount."""
        self._order, self._opus, self._clock = PacketOrder(), OpusDecoder(SAMPLE_RATE), clock
        self._lost = 0
        self._samples = PACKET_BYTES // 2  # of a packet
        self._paid_until_s = clock()

    def packet(self, number: int, payload: bytes) -> bytes:
        """The samples that the packet with this number completes; none if the packet is invalid or comes too
        early.
        """
        now_s, length_s = self._clock(), packet_ms(payload) / 1000
        if not length_s:  # it would cost no time, and the estimates before it some
            return b""
        self._paid_until_s = max(self._paid_until_s, now_s) + length_s
        if self._paid_until_s > now_s + MOST_AHEAD_S or len(payload) > MAX_PACKET_BYTES:
            self._paid_until_s = min(self._paid_until_s, now_s + MOST_AHEAD_S)
            return b""
        pieces = [piece for packet in self._order.add(number, payload) for piece in self._decoded(packet)]
        return s16le_from_float(np.concatenate(pieces)) if pieces else b""

    def _decoded(self, packet: bytes | None) -> list[FloatArray]:
        """The samples of the next packet, after those of the lost ones before it."""
        if packet is None:
            self._lost += 1
            return []
        lost, self._lost = min(self._lost, MOST_CONCEALED), 0
        self._paid_until_s += lost * self._samples / SAMPLE_RATE  # an estimate costs as much as a packet
        try:
            pieces = [self._opus.conceal(self._samples) for _ in range(lost - 1)]
            if lost:
                pieces.append(self._opus.conceal(self._samples, packet))
            pieces.append(self._opus.decode(packet))
        except AudioError:
            return []
        self._samples = pieces[-1].size
        return pieces

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()


class OutgoingSound:
    """The sound sent to one peer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin."""
        self._opus, self._clock = PacketEncoder(SAMPLE_RATE, SAMPLE_RATE), clock
        self._start_s = clock()
        self._slot = -1  # of 20 ms since then: the last used one
        self._rest = b""
        self._packets: deque[bytes] = deque()
        self._has_packets = asyncio.Event()

    @property
    def is_sent(self) -> bool:
        """Whether no packet waits to be sent."""
        return not self._packets

    def put(self, samples: bytes) -> None:
        """Add samples; an incomplete packet waits for the next ones.

        Raises:
            AudioError: the samples cannot be encoded.
        """
        data = self._rest + samples
        end = len(data) - len(data) % PACKET_BYTES
        self._rest = data[end:]
        if end:
            self._packets += self._opus.encode(float_from_s16le(data[:end]))
            if len(self._packets) > MOST_WAITING:
                while len(self._packets) > KEPT_WAITING:
                    self._packets.popleft()
            self._has_packets.set()

    def clear(self) -> None:
        """Drop waiting packets."""
        self._packets.clear()
        self._rest = b""

    async def next(self) -> tuple[bytes, int]:
        """The next packet when it is due, and its time in RTP units."""
        while True:
            while not self._packets:
                self._has_packets.clear()
                await self._has_packets.wait()
            now_s = self._clock() - self._start_s
            self._slot += 1
            if self._slot * PACKET_S < now_s - MOST_LATE_S:
                self._slot = int(now_s / PACKET_S)
            if (left_s := self._slot * PACKET_S - now_s) > 0:
                await asyncio.sleep(left_s)
            if self._packets:  # else they were dropped meanwhile
                return self._packets.popleft(), round(self._slot * PACKET_S * RTP_RATE)

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()

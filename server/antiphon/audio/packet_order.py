"""Puts the packets of one RTP stream in order, and reports each lost packet once."""

from __future__ import annotations

from typing import Final

DEPTH: Final = 3
"""Number of later packets after which a missing packet counts as lost: 60 ms. Jitter may reorder packets
within this time.
"""

MAX_GAP: Final = 50
"""Number of consecutive missing packets above which the stream restarts: a second."""


class PacketOrder:
    """The order of packets by their 16-bit numbers; late and duplicate packets are dropped."""

    def __init__(self) -> None:
        """Start with the first packet received."""
        self._next: int | None = None
        self._waiting: dict[int, bytes] = {}

    def add(self, number: int, packet: bytes) -> list[bytes | None]:
        """Add a packet; return the packets that are now in order, None for each lost one."""
        if self._next is None:
            self._next = number
        ahead = (number - self._next) & 0xFFFF
        is_behind = ahead >= 0x8000
        if is_behind and 0x10000 - ahead <= MAX_GAP:
            return []
        found: list[bytes | None] = []
        if is_behind or ahead > MAX_GAP:
            found += [self._waiting[it] for it in sorted(self._waiting, key=self._distance)]
            self._waiting.clear()
            self._next = number
        self._waiting[number] = packet
        while self._waiting:
            packet_now = self._waiting.pop(self._next, None)
            if packet_now is None and len(self._waiting) < DEPTH:
                break
            found.append(packet_now)
            self._next = (self._next + 1) & 0xFFFF
        return found

    def _distance(self, number: int) -> int:
        assert self._next is not None
        return (number - self._next) & 0xFFFF

"""Opus packets taken apart and put together (RFC 6716, section 3), without decoding them.

A call into libopus gives the interpreter lock away and has to win it back, which among many threads costs
more than the call. So a frame of 80 ms is encoded at once and cut into the packets of 20 ms that go on the
wire, and packets that came one by one are joined and decoded at once. Neither changes a bit of the audio.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import AudioError

_SILK_MS = (10.0, 20.0, 40.0, 60.0)
_HYBRID_MS = (10.0, 20.0)
_CELT_MS = (2.5, 5.0, 10.0, 20.0)
FRAME_MS = (*_SILK_MS * 3, *_HYBRID_MS * 2, *_CELT_MS * 4)
"""The length of a packet's frames, by its configuration (table 2)."""

MAX_PACKET_MS = 120.0
MAX_FRAME_BYTES = 1275

_ONE, _TWO_EQUAL, _ANY = 0, 1, 3  # the codes for one frame, for two of one length, for a count of them
_VARIABLE, _PADDED, _COUNT = 0x80, 0x40, 0x3F


def packet_ms(packet: bytes) -> float:
    """How much audio a packet says it holds, in milliseconds; 0 when it says nothing."""
    if not packet:
        return 0.0
    code, frame_ms = packet[0] & 3, FRAME_MS[packet[0] >> 3]
    if code != _ANY:
        return frame_ms if code == _ONE else 2 * frame_ms
    return frame_ms * (packet[1] & _COUNT) if len(packet) > 1 else 0.0


def split_packet(packet: bytes) -> list[bytes]:
    """A packet of several frames as packets of one frame each.

    Raises:
        AudioError: its lengths do not add up, or it is padded.
    """
    sizes, position = _sizes(packet)
    if sum(sizes) != len(packet) - position or min(sizes, default=-1) < 0:
        raise AudioError(f"{len(sizes)} frames in a packet of {len(packet)} bytes do not add up")
    head = bytes((packet[0] & ~3,))
    parts: list[bytes] = []
    for size in sizes:
        parts.append(head + packet[position : position + size])
        position += size
    return parts


def _sizes(packet: bytes) -> tuple[list[int], int]:
    """The lengths of a packet's frames, and where the first begins (section 3.2)."""
    code, position = packet[0] & 3, 1
    if code != _ANY:
        left = len(packet) - position
        if code == _ONE:
            return [left], position
        if code == _TWO_EQUAL:
            return [left // 2] * 2, position
        first, position = _read_size(packet, position)
        return [first, len(packet) - position - first], position
    if len(packet) < 2 or packet[1] & _PADDED:
        raise AudioError(f"a packet of {len(packet)} bytes is padded, or ends before its frames")
    frames, position = packet[1] & _COUNT, 2
    if not frames:
        return [], position
    if not packet[1] & _VARIABLE:
        return [(len(packet) - position) // frames] * frames, position
    sizes: list[int] = []
    for _ in range(frames - 1):
        size, position = _read_size(packet, position)
        sizes.append(size)
    return [*sizes, len(packet) - position - sum(sizes)], position


def join_packets(packets: Sequence[bytes]) -> list[bytes]:
    """The same audio in fewer packets: neighbours of one frame and one configuration become one."""
    joined: list[bytes] = []
    run: list[bytes] = []
    for packet in packets:
        if run and not _fits(run, packet):
            joined.append(_join(run))
            run = []
        run.append(packet)
    if run:
        joined.append(_join(run))
    return joined


def _fits(run: Sequence[bytes], packet: bytes) -> bool:
    first = run[0]
    if not (packet and first) or packet[0] != first[0] or packet[0] & 3 != _ONE:
        return False
    is_short = (len(run) + 1) * FRAME_MS[packet[0] >> 3] <= MAX_PACKET_MS
    return is_short and max(len(packet), len(first)) <= 1 + MAX_FRAME_BYTES


def _join(run: Sequence[bytes]) -> bytes:
    if len(run) == 1:
        return run[0]
    head = bytes((run[0][0] | _ANY, len(run) | _VARIABLE))
    sizes = b"".join(_size(len(packet) - 1) for packet in run[:-1])
    return head + sizes + b"".join(packet[1:] for packet in run)


def _size(size: int) -> bytes:
    """A frame's length (section 3.2.1)."""
    if size < 252:
        return bytes((size,))
    first = 252 + (size & 3)
    return bytes((first, (size - first) >> 2))


def _read_size(packet: bytes, position: int) -> tuple[int, int]:
    """The length at ``position``, and the position behind it."""
    field = packet[position : position + 2]
    if field and field[0] < 252:
        return field[0], position + 1
    if len(field) < 2:
        raise AudioError(f"a packet of {len(packet)} bytes ends in a length")
    return field[0] + 4 * field[1], position + 2

"""Reads and writes Ogg pages of Opus packets (RFC 3533, RFC 7845) without I/O, and decodes and encodes such
streams.

The reader accepts the same streams as the Moshi family's servers, because their clients must work unchanged:

* One logical stream at a time. A page that begins a stream (with any serial) starts the next one; other pages
  of another serial are skipped. If the reader joins a stream in the middle, it reads from there.
* Pre-skip, output gain and granule positions are read but not applied. Time is the sum of the packets'
  durations, so a peer's granule rate has no effect.
* Bytes outside of pages, and pages with a wrong checksum, are skipped up to the next capture pattern and
  counted; too many in a row are an error. A packet with a missing page is dropped.

Writing counts granules at 48 kHz.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.codec import Decoder, Encoder
from antiphon.audio.opus import OpusDecoder, OpusEncoder
from antiphon.errors import AudioError

GRANULE_RATE = 48_000
MAX_PACKET_BYTES = 61_440
"""Bytes of the longest packet a reader must accept (RFC 7845, section 6): 120 ms of eight stereo streams."""

MAX_SKIPPED_BYTES = 65_536
"""Maximum bytes in a row outside of pages. It is about the longest page, so that one damaged page never ends
a stream.
"""

MAX_DAMAGED_PAGES = 16
"""Maximum wrong checksums in a row. Sockets do not damage bytes, and each wrong checksum costs the parsing of
a page.
"""

PIECE_BYTES: Final = 4096
"""Bytes of a stream parsed in one step, 0.1 ms; packets of a completed page wait for the next step."""

STEP_SAMPLES: Final = 12_000
"""Audio decoded in one step: half a second in 0.5 ms."""

STEP_PACKETS: Final = 32
"""Packets decoded in one step. The time to decode short packets depends on their number, not their length."""

_CAPTURE = b"OggS\0"  # with the version, to reject more false page starts
_HEAD = struct.Struct("<5sBqIIIB")
_OPUS_HEAD = struct.Struct("<8sBBHIhB")
_CONTINUED, _BEGIN, _END = 1, 2, 4
_MIRROR = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


@dataclass(frozen=True, slots=True)
class OpusHead:
    """The first packet of an Ogg/Opus stream.

    ``pre_skip`` counts samples at 48 kHz; ``output_gain`` is in 1/256 dB; ``sample_rate`` is the rate of the
    original recording, in Hz, and does not affect decoding.
    """

    channels: int = 1
    pre_skip: int = 0
    sample_rate: int = 24_000
    output_gain: int = 0

    def to_bytes(self) -> bytes:
        """The bytes of the packet (RFC 7845, section 5.1)."""
        return _OPUS_HEAD.pack(
            b"OpusHead", 1, self.channels, self.pre_skip, self.sample_rate, self.output_gain, 0
        )

    @classmethod
    def from_bytes(cls, packet: bytes) -> OpusHead:
        """Read an OpusHead packet.

        Raises:
            AudioError: another codec, a version or a channel mapping that is not known.
        """
        if not packet.startswith(b"OpusHead") or len(packet) < _OPUS_HEAD.size:
            raise AudioError(f"an Ogg stream that is not Opus: it begins with {packet[:8]!r}")
        _, version, channels, pre_skip, sample_rate, gain, family = _OPUS_HEAD.unpack_from(packet)
        if version >> 4:
            raise AudioError(f"OpusHead of version {version}, only 0 to 15 are compatible")
        if family != 0 or channels not in (1, 2):
            raise AudioError(
                f"{channels} channels in mapping family {family}, only 1 or 2 in family 0 are known"
            )
        return cls(channels, pre_skip, sample_rate, gain)


class OggOpusReader:
    """Parses a stream of bytes, in any portions, into audio packets.

    ``head`` is the OpusHead of the current stream; it is None before the first stream, and if the reader
    joined the stream in the middle. ``granule_position`` is the position in the last page, in the peer's
    unit. ``streams`` counts stream starts, ``damaged_pages`` wrong checksums, ``skipped_bytes`` the bytes
    outside of pages, and ``gaps`` breaks in the numbering of pages. It buffers at most one page and one
    packet.
    """

    def __init__(self) -> None:
        """Expect the first page."""
        self.head: OpusHead | None = None
        self.granule_position = 0
        self.streams = 0
        self.damaged_pages = 0
        self.skipped_bytes = 0
        self.gaps = 0
        self._buffer = b""
        self._skipped_in_a_row = 0
        self._damaged_in_a_row = 0
        self._serial: int | None = None
        self._sequence = 0
        self._partial: bytes | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Add the next bytes; returns the audio packets that they complete.

        Raises:
            AudioError: another codec than Opus, a packet that is too long, or too many bytes outside of
                pages. The reader then discards its buffer and reads the next bytes as after a gap.
        """
        buffer = self._buffer + data if self._buffer else data
        self._buffer = b""
        packets: list[bytes] = []
        position = 0
        while (start := buffer.find(_CAPTURE, position)) >= 0:
            self._skip(start - position)
            position = start
            size = _page_size(buffer, start)
            if size is None:
                break
            page = buffer[start : start + size]
            if page[22:26] == _checksum(page):
                position += size
                self._skipped_in_a_row = self._damaged_in_a_row = 0
                self._take_page(page, packets)
            else:
                self._count_damaged()
                self._skip(len(_CAPTURE))
                position += len(_CAPTURE)
        else:
            end = max(position, len(buffer) - len(_CAPTURE) + 1)  # a capture pattern may have begun
            self._skip(end - position)
            position = end
        self._buffer = buffer[position:]
        return packets

    def _skip(self, count: int) -> None:
        self.skipped_bytes += count
        self._skipped_in_a_row += count
        if self._skipped_in_a_row > MAX_SKIPPED_BYTES:
            skipped, self._skipped_in_a_row = self._skipped_in_a_row, 0
            raise AudioError(f"{skipped} bytes without an Ogg page, the limit is {MAX_SKIPPED_BYTES}")

    def _count_damaged(self) -> None:
        self.damaged_pages += 1
        self._damaged_in_a_row += 1
        if self._damaged_in_a_row > MAX_DAMAGED_PAGES:
            self._damaged_in_a_row = 0
            raise AudioError(f"{MAX_DAMAGED_PAGES + 1} Ogg pages in a row with a wrong checksum")

    def _take_page(self, page: bytes, packets: list[bytes]) -> None:
        _, flags, granule, serial, sequence, _, segments = _HEAD.unpack_from(page)
        if flags & _BEGIN or self._serial is None:
            self._begin(serial, sequence)
        elif serial != self._serial:
            return
        if sequence != self._sequence:
            self.gaps += 1
            self._partial = None
        self._sequence = (sequence + 1) & 0xFFFF_FFFF
        if granule >= 0:
            self.granule_position = granule
        complete = self._split(page, segments, is_continued=bool(flags & _CONTINUED))
        if flags & _BEGIN:
            self.streams += 1
            self.head = OpusHead.from_bytes(complete[0] if complete else b"")
        packets.extend(packet for packet in complete if not packet.startswith((b"OpusHead", b"OpusTags")))

    def _begin(self, serial: int, sequence: int) -> None:
        self._serial = serial
        self._sequence = sequence
        self._partial = None
        self.head = None

    def _split(self, page: bytes, segments: int, *, is_continued: bool) -> list[bytes]:
        """The packets that end on this page; the rest of the last one is kept for the next page."""
        partial = self._partial
        start = end = _HEAD.size + segments
        complete: list[bytes] = []
        # A continuation without its start is dropped, and so is a start without its continuation.
        is_missing_start = is_continued and partial is None
        begun = partial if is_continued and partial is not None else b""
        for lacing in page[_HEAD.size : start]:
            end += lacing
            if lacing < 255:
                if not is_missing_start:
                    complete.append(self._checked(begun + page[start:end]))
                is_missing_start, begun, start = False, b"", end
        is_open = segments > 0 and page[_HEAD.size + segments - 1] == 255 and not is_missing_start
        self._partial = self._checked(begun + page[start:end]) if is_open else None
        return complete

    def _checked(self, packet: bytes) -> bytes:
        if len(packet) > MAX_PACKET_BYTES:
            self._partial = None
            raise AudioError(f"a packet of {len(packet)} bytes or more, the limit is {MAX_PACKET_BYTES}")
        return packet


class OggOpusWriter:
    """Puts packets into the pages of one mono stream with the given ``serial``.

    ``sample_rate`` (Hz) is the rate of the audio, ``pre_skip`` the encoder's lookahead in samples at this
    rate.
    """

    def __init__(self, serial: int, sample_rate: int = 24_000, *, pre_skip: int = 0) -> None:
        """Begin a stream whose pages are numbered from 0: head, tags, then audio."""
        self._serial = serial
        self._scale = GRANULE_RATE // sample_rate
        self._head = OpusHead(pre_skip=pre_skip * self._scale, sample_rate=sample_rate)
        self._sequence = 0
        self._granule = 0

    def headers(self) -> bytes:
        """The first two pages: OpusHead and OpusTags."""
        vendor = b"antiphon"
        tags = b"OpusTags" + len(vendor).to_bytes(4, "little") + vendor + bytes(4)
        return self._page([self._head.to_bytes()], _BEGIN) + self._page([tags], 0)

    def page(self, packets: Sequence[bytes], samples: int) -> bytes:
        """One page with whole packets that hold ``samples`` samples at the stream's rate.

        Raises:
            AudioError: the packets do not fit into one page.
        """
        self._granule += samples * self._scale
        return self._page(packets, 0)

    def finish(self) -> bytes:
        """The page that ends the stream, without a packet."""
        return self._page([], _END)

    def _page(self, packets: Sequence[bytes], flags: int) -> bytes:
        lacing = b"".join(b"\xff" * (len(packet) // 255) + bytes((len(packet) % 255,)) for packet in packets)
        if len(lacing) > 255:
            raise AudioError(f"{len(packets)} packets take {len(lacing)} segments, a page has room for 255")
        head = _HEAD.pack(_CAPTURE, flags, self._granule, self._serial, self._sequence, 0, len(lacing))
        self._sequence += 1
        page = b"".join((head, lacing, *packets))
        return page[:22] + _checksum(page) + page[26:]


def _page_size(buffer: bytes, start: int) -> int | None:
    """Bytes of the page at ``start``, or None while it is incomplete."""
    table = start + _HEAD.size
    if len(buffer) < table:
        return None
    segments = buffer[table - 1]
    if len(buffer) < table + segments:
        return None
    size = _HEAD.size + segments + sum(buffer[table : table + segments])
    return size if len(buffer) >= start + size else None


def _checksum(page: bytes) -> bytes:
    """The four bytes of a page's checksum, computed with those bytes as zero.

    Ogg's CRC takes the most significant bit first and does not invert the value. zlib's CRC uses the same
    polynomial with reversed bits, and inverts the value at the start and at the end. The code reverses the
    bits of every byte, undoes the inversions and reverses the result.
    """
    mirrored = (page[:22] + b"\0\0\0\0" + page[26:]).translate(_MIRROR)
    return (zlib.crc32(mirrored, 0xFFFF_FFFF) ^ 0xFFFF_FFFF).to_bytes(4, "big").translate(_MIRROR)


class OggDecoder(Decoder):
    """Decodes the pieces of one Ogg/Opus stream.

    As in upstream's servers, the decoder does not remove the pre-skip, does not clip samples, and keeps its
    state when a new stream begins in the session.
    """

    piece_bytes = PIECE_BYTES

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Opus decodes to any of its rates."""
        super().__init__()
        self._opus, self._reader = OpusDecoder(rate), OggOpusReader()
        self._packets: deque[bytes] = deque()

    def step(self) -> FloatArray | None:
        """Decode half a second of buffered packets, or the packets that a new piece completes."""
        if not self._packets:
            if not self._pieces:
                return None
            self._packets.extend(self._reader.feed(self._pieces.popleft()))
        found: list[FloatArray] = []
        samples = 0
        while self._packets and samples < STEP_SAMPLES and len(found) < STEP_PACKETS:
            found.append(self._opus.decode(self._packets.popleft()))
            samples += found[-1].size
        self.has_more = bool(self._pieces or self._packets)
        if len(found) == 1:
            return found[0]
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    def clear(self) -> None:
        """Drop all buffered data."""
        super().clear()
        self._packets.clear()

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()


class OggEncoder(Encoder):
    """Encodes one Ogg/Opus stream: 20, 40 or 80 ms at a time, as one packet on one page. The headers come
    first.
    """

    def __init__(self, rate: int, _wire_rate: int) -> None:
        """Make an encoder; ``rate`` must be a rate that Opus supports."""
        self._opus = OpusEncoder(rate)
        self._ogg = OggOpusWriter(1, rate, pre_skip=self._opus.lookahead_samples)
        self._headers = self._ogg.headers()

    def encode(self, pcm: FloatArray) -> list[bytes]:
        """One page with the samples of ``pcm``."""
        page = self._ogg.page([self._opus.encode(pcm)], pcm.size)
        headers, self._headers = self._headers, b""
        return [headers + page]

    def finish(self) -> list[bytes]:
        """The last page, or nothing if no page was written."""
        return [] if self._headers else [self._ogg.finish()]

    def close(self) -> None:
        """Free libopus's memory."""
        self._opus.close()

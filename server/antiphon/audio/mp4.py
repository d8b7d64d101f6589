"""What an MP4 file states of itself, looked at before FFmpeg believes it.

FFmpeg makes a table entry of 24 bytes for every sample that a header states, however small the header: a
file of 300 bytes can state 2^27. A compressed header (``cmov``) would hide such numbers, so it is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

from antiphon.errors import AudioError

MAX_SAMPLES: Final = 2**20
"""Of AAC, six hours at 48 kHz; FFmpeg's tables for them take 25 MB."""

MAX_HEADER_BYTES: Final = 16 * 2**20
"""Everything but the audio itself; an hour of AAC has 0.7 MB."""

_COUNTS: Final = {b"stsz": 8, b"stz2": 8, b"trun": 4}
"""Where behind its name a box states how many samples there are."""

_HIDING: Final = b"cmov"
_HEADER, _LONG_HEADER = 8, 16


def check_mp4(file: BinaryIO) -> None:
    """Pass a file whose header states no more than may be; the position in the file is kept.

    Raises:
        AudioError: it states more.
    """
    position = file.tell()
    samples = header_bytes = 0
    for start, end in _headers(file):
        header_bytes += end - start
        if header_bytes > MAX_HEADER_BYTES:
            raise AudioError(f"this mp4 file has over {MAX_HEADER_BYTES} bytes of header, the limit")
        file.seek(start)
        data = file.read(end - start)
        if _HIDING in data:
            raise AudioError("this mp4 file has a compressed header, which is not read")
        samples += sum(_stated_samples(data))
        if samples > MAX_SAMPLES:
            raise AudioError(f"this mp4 file states {samples} samples, the limit is {MAX_SAMPLES}")
    file.seek(position)


def _headers(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The ranges of the file that are no audio."""
    size = file.seek(0, os.SEEK_END)
    start = begun = 0
    while start + _HEADER <= size:
        file.seek(start)
        head = file.read(_LONG_HEADER)
        length = int.from_bytes(head[:4])
        if length == 1:
            length = int.from_bytes(head[8:])
        end = size if length < _HEADER else min(size, start + length)
        if head[4:8] == b"mdat":
            yield begun, start
            begun = end
        start = end
    yield begun, size


def _stated_samples(data: bytes) -> Iterator[int]:
    """Boxes are found by their names, wherever they are: FFmpeg reads them in places where none belongs."""
    for name, offset in _COUNTS.items():
        at = data.find(name)
        while at >= 0:
            first = at + len(name) + offset
            yield int.from_bytes(data[first : first + 4])
            at = data.find(name, at + 1)

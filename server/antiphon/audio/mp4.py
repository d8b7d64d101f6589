"""Checks the header of an MP4 file before FFmpeg reads it.

FFmpeg makes a table entry of 24 bytes for every sample that a header states, however small the header: a file
of 300 bytes can state 2^27. It repeats these entries for every edit, and for PCM makes one for every 160
samples of a chunk. Compressed headers (``cmov``) could hide such numbers, and tables of pictures (``iinf``,
``iloc``) have further numbers, so both are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, Final

import numpy as np

from antiphon.errors import AudioError

MAX_SAMPLES: Final = 2**20
"""Samples of six hours of AAC at 48 kHz; FFmpeg's tables for them take 25 MB."""

MAX_EDITED: Final = 4 * MAX_SAMPLES
"""Samples times edits: encoders write an edit or two for each track."""

MAX_HEADER_BYTES: Final = 16 * 2**20
"""Bytes of everything but the audio itself; an hour of AAC has 0.7 MB."""

MAX_BOXES: Final = 65_536
"""Maximum number of boxes at the top level: half of them are fragments, of which an hour has several
thousand.
"""

_COUNTS: Final = {b"stsz": 8, b"stz2": 8, b"trun": 4}
"""The offset of a box's sample count after its name."""

_REFUSED: Final = {
    b"cmov": "a compressed header",
    b"iinf": "a table of pictures",
    b"iloc": "a table of pictures",
}
_CHUNK_STEP: Final = 160
"""Minimum number of PCM samples that FFmpeg reads at a time."""

_HEADER, _LONG_HEADER = 8, 16


def check_mp4(file: BinaryIO) -> None:
    """Check that the numbers in a file's header are within the limits; the position in the file is kept.

    Raises:
        AudioError: a number is above its limit.
    """
    position = file.tell()
    samples = edits = chunks = in_chunk = header_bytes = 0
    for start, end in _headers(file):
        header_bytes += end - start
        if header_bytes > MAX_HEADER_BYTES:
            raise AudioError(f"this mp4 file has over {MAX_HEADER_BYTES} bytes of header, the limit")
        file.seek(start)
        data = file.read(end - start)
        for name, words in _REFUSED.items():
            if name in data:
                raise AudioError(f"this mp4 file has {words}, which is not supported")
        samples += sum(sum(_stated(data, name, offset)) for name, offset in _COUNTS.items())
        edits += sum(_stated(data, b"elst", 4))
        chunks += sum(_stated(data, b"stco", 4)) + sum(_stated(data, b"co64", 4))
        in_chunk = max(in_chunk, *_chunk_samples(data), 0)
        _check_stated(samples, MAX_SAMPLES, "samples")
        _check_stated(samples * edits, MAX_EDITED, "samples in its edits")
        _check_stated(chunks * in_chunk // _CHUNK_STEP, MAX_SAMPLES, "pieces in its chunks")
    file.seek(position)


def _check_stated(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise AudioError(f"this mp4 file states {count} {what}, the limit is {limit}")


def _headers(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The ranges of the file that are not audio.

    Raises:
        AudioError: too many boxes.
    """
    size = file.seek(0, os.SEEK_END)
    start = begun = boxes = 0
    while start + _HEADER <= size:
        boxes += 1
        if boxes > MAX_BOXES:
            raise AudioError(f"this mp4 file has over {MAX_BOXES} boxes, the limit")
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


def _places(data: bytes, name: bytes) -> Iterator[int]:
    """The ends of all occurrences of a box's name: FFmpeg also reads boxes in invalid places."""
    at = data.find(name)
    while at >= 0:
        yield at + len(name)
        at = data.find(name, at + 1)


def _stated(data: bytes, name: bytes, offset: int) -> Iterator[int]:
    """The numbers ``offset`` bytes after the name of such boxes."""
    for at in _places(data, name):
        yield int.from_bytes(data[at + offset : at + offset + 4])


def _chunk_samples(data: bytes) -> Iterator[int]:
    """The largest number of samples in a chunk, from each table."""
    for at in _places(data, b"stsc"):
        count = int.from_bytes(data[at + 4 : at + 8])
        table = data[at + 8 : at + 8 + 12 * count]
        entries = np.frombuffer(table[: len(table) // 4 * 4], ">u4")[1::3]
        yield int(entries.max(initial=0))

"""MP4 files whose headers state more data than the file contains."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from antiphon.audio.mp4 import MAX_BOXES, MAX_HEADER_BYTES, MAX_SAMPLES, check_mp4
from antiphon.audio.stream import stated_seconds
from antiphon.errors import AudioError
from tests.audio.recordings import encoded
from tests.audio.test_stream import decoded, tone


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), name) + body


def full(name: bytes, *parts: bytes) -> bytes:
    """A box with a version and flags."""
    return box(name, bytes(4), *parts)


def numbers(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def bomb(samples: int) -> bytes:
    """560 bytes that state so many samples of AAC, of a byte each."""
    return recording(samples)


def recording(
    samples: int,
    *,
    sample_bytes: int = 1,
    duration: int = 1024,
    code: bytes = b"mp4a",
    chunks: Sequence[int] = (40,),
    in_chunk: int | None = None,
    edits: int = 0,
    audio: bytes = bytes(64),
) -> bytes:
    """An MP4 that states so many samples, in chunks at these places, and so many edits of all of them."""
    movie = struct.pack(">IIIIIH10x", 0, 0, 1000, 1000, 0x10000, 0x100)
    track = struct.pack(">IIIII", 0, 0, 1, 0, 1000)
    media = struct.pack(">IIIIHH", 0, 0, 44100, samples, 0x55C4, 0)
    sound = bytes(6) + struct.pack(">H8xHHHHI", 1, 1, 16, 0, 0, 44100 << 16)
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), box(code, sound)),
        full(b"stts", numbers(1, samples, duration)),
        full(b"stsc", numbers(1, 1, samples if in_chunk is None else in_chunk, 1)),
        full(b"stsz", numbers(sample_bytes, samples)),
        full(b"stco", numbers(len(chunks), *chunks)),
    )
    handler = full(b"hdlr", b"\0\0\0\0soun", bytes(12), b"a\0")
    edited = b"" if not edits else full(b"elst", numbers(edits), numbers(1_000_000, 0, 0x10000) * edits)
    information = box(b"minf", full(b"smhd", bytes(4)), table)
    return b"".join(
        (
            box(b"ftyp", b"M4A \0\0\0\0M4A isom"),
            box(b"mdat", audio),
            box(
                b"moov",
                full(b"mvhd", movie, bytes(60), struct.pack(">I", 2)),
                box(
                    b"trak",
                    full(b"tkhd", track, bytes(60)),
                    edited and box(b"edts", edited),
                    box(b"mdia", full(b"mdhd", media), handler, information),
                ),
            ),
        )
    )


def test_a_header_of_500_bytes_that_states_gigabytes_of_tables_is_refused() -> None:
    """FFmpeg alone takes 2.4 GB and 12 s for it."""
    data = bomb(2**26)
    assert len(data) < 600
    with pytest.raises(AudioError, match=f"states {2**26} samples, the limit is {MAX_SAMPLES}"):
        decoded(data)


@pytest.mark.parametrize(("name", "skipped"), [(b"trun", 4), (b"stz2", 8), (b"stsz", 8)])
def test_a_count_is_found_wherever_it_is(name: bytes, skipped: int) -> None:
    stated = box(name, bytes(skipped), (MAX_SAMPLES + 1).to_bytes(4))
    with pytest.raises(AudioError, match="the limit is"):
        check_mp4(io.BytesIO(box(b"ftyp") + box(b"moof", box(b"udta", stated))))
    check_mp4(io.BytesIO(box(b"ftyp") + box(b"mdat", stated)))  # what is audio states nothing


def test_counts_are_added() -> None:
    half = box(b"moof", box(b"trun", bytes(4), (MAX_SAMPLES // 2 + 1).to_bytes(4)))
    check_mp4(io.BytesIO(half))
    with pytest.raises(AudioError, match=f"states {MAX_SAMPLES + 2} samples"):
        check_mp4(io.BytesIO(half + half))


def test_a_header_that_hides_or_has_no_end_is_refused() -> None:
    with pytest.raises(AudioError, match="a compressed header, which is not supported"):
        check_mp4(io.BytesIO(box(b"moov", box(b"cmov", bytes(100)))))
    with pytest.raises(AudioError, match="a table of pictures, which is not supported"):
        check_mp4(io.BytesIO(box(b"meta", box(b"iinf", bytes(100)))))
    with pytest.raises(AudioError, match=f"over {MAX_HEADER_BYTES} bytes of header, the limit"):
        check_mp4(io.BytesIO(box(b"free", bytes(MAX_HEADER_BYTES))))


def test_every_edit_states_its_samples_again() -> None:
    """FFmpeg alone takes 2 GB for these 1.7 KB: a table entry for every sample of every edit."""
    data = recording(2**20, edits=100)
    assert len(data) < 1900
    with pytest.raises(AudioError, match=f"states {100 * 2**20} samples in its edits, the limit is"):
        decoded(data)
    check_mp4(io.BytesIO(recording(2**20, edits=4)))


def test_pieces_of_pcm_are_counted_by_their_chunks() -> None:
    """FFmpeg alone takes 1.2 GB for these 600 bytes: a table entry for every 160 samples of a chunk."""
    data = recording(4, duration=1, code=b"sowt", chunks=(40,) * 4, in_chunk=2**31 - 1)
    assert len(data) < 600
    with pytest.raises(AudioError, match="states 53687091 pieces in its chunks, the limit is"):
        decoded(data)


@pytest.mark.parametrize("name", [b"free", b"mdat"])
def test_empty_boxes_are_counted(name: bytes) -> None:
    """64 MiB of them keep the thread that reads recordings from the next one for 4 to 17 s."""
    with pytest.raises(AudioError, match=f"over {MAX_BOXES} boxes, the limit"):
        check_mp4(io.BytesIO(box(b"ftyp") + box(name) * MAX_BOXES))


def test_samples_that_lie_upon_each_other_are_read_no_more_than_twice() -> None:
    """8 MB, stated a hundred times over; of PCM, so that every packet can be decoded."""
    data = recording(
        100, sample_bytes=2**23, code=b"sowt", chunks=(40,) * 100, in_chunk=1, audio=bytes(2**23)
    )
    with pytest.raises(AudioError, match=f"the packets of this file have over 2 times its {len(data)} bytes"):
        decoded(data)


@pytest.mark.parametrize("size", [bytes(4), b"\0\0\0\1" + b"mdat" + (2**63).to_bytes(8)])
def test_a_box_may_go_on_to_the_end_or_state_a_long_size(size: bytes) -> None:
    long = size[4:8] == b"mdat"
    data = box(b"ftyp") + (size if long else size + b"mdat") + bytes(50)
    file = io.BytesIO(data)
    check_mp4(file)
    assert file.tell() == 0


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [
        *(("mp4", "aac", 44_100), ("ipod", "aac", 48_000), ("mp4", "alac", 44_100), ("adts", "aac", 24_000)),
        *(("webm", "libopus", 48_000), ("matroska", "pcm_s16le", 8000)),
    ],
)
def test_what_telephones_and_browsers_record_is_heard(container: str, codec: str, rate: int) -> None:
    data = encoded(tone(rate)[None], rate, container, codec)
    heard = decoded(data)
    assert heard.size == pytest.approx(24_000, abs=2500)
    spectrum = np.abs(np.fft.rfft(heard[6000:18_000]))
    assert int(spectrum.argmax()) * 2 == pytest.approx(330, abs=3)
    stated = stated_seconds(io.BytesIO(data))
    assert stated is None if container not in ("mp4", "ipod") else stated == pytest.approx(1.0, abs=0.1)

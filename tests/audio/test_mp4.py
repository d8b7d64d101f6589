"""MP4 files that state more than they hold."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from antiphon.audio.mp4 import MAX_HEADER_BYTES, MAX_SAMPLES, check_mp4
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


def bomb(samples: int) -> bytes:
    """560 bytes that state so many samples of AAC, of a byte each."""
    movie = struct.pack(">IIIIIH10x", 0, 0, 1000, 1000, 0x10000, 0x100)
    track = struct.pack(">IIIII", 0, 0, 1, 0, 1000)
    media = struct.pack(">IIIIHH", 0, 0, 44100, samples, 0x55C4, 0)
    sound = bytes(6) + struct.pack(">H8xHHHHI", 1, 1, 16, 0, 0, 44100 << 16)
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), box(b"mp4a", sound)),
        full(b"stts", struct.pack(">III", 1, samples, 1024)),
        full(b"stsc", struct.pack(">IIII", 1, 1, samples, 1)),
        full(b"stsz", struct.pack(">II", 1, samples)),
        full(b"stco", struct.pack(">II", 1, 40)),
    )
    handler = full(b"hdlr", b"\0\0\0\0soun", bytes(12), b"a\0")
    information = box(b"minf", full(b"smhd", bytes(4)), table)
    return b"".join(
        (
            box(b"ftyp", b"M4A \0\0\0\0M4A isom"),
            box(b"mdat", bytes(64)),
            box(
                b"moov",
                full(b"mvhd", movie, bytes(60), struct.pack(">I", 2)),
                box(
                    b"trak",
                    full(b"tkhd", track, bytes(60)),
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
    with pytest.raises(AudioError, match="a compressed header, which is not read"):
        check_mp4(io.BytesIO(box(b"moov", box(b"cmov", bytes(100)))))
    with pytest.raises(AudioError, match=f"over {MAX_HEADER_BYTES} bytes of header, the limit"):
        check_mp4(io.BytesIO(box(b"free", bytes(MAX_HEADER_BYTES))))


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

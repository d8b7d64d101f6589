"""Readers of clients' audio: Ogg pages, Opus packets, WAV files, and containers through FFmpeg."""

from __future__ import annotations

import io
import itertools

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.audio.codecs import CODECS, make_decoder
from antiphon.audio.mp4 import check_mp4
from antiphon.audio.ogg import OggOpusReader
from antiphon.audio.opus import join_packets, packet_ms, split_packet
from antiphon.audio.stream import container_of, decode_pieces, stated_rate, stated_seconds
from antiphon.errors import AudioError
from lab.tools.fuzz.target import Target, require

CAPTURE, HEAD_BYTES = b"OggS", 27
MAX_PIECES = 2000
"""Most pieces of a recording: an input is shorter than a second of most kinds."""


def sealed(data: bytes) -> bytes:
    """Return Ogg pages with a correct checksum each, which mutation does not find."""
    changed = bytearray(data)
    start = changed.find(CAPTURE)
    while start >= 0 and start + HEAD_BYTES <= len(changed):
        segments = changed[start + 26]
        table = start + HEAD_BYTES
        end = table + segments + sum(changed[table : table + segments])
        if end <= len(changed):
            changed[start + 22 : start + 26] = _checksum(bytes(changed[start:end]))
            start = changed.find(CAPTURE, end)
        else:
            start = changed.find(CAPTURE, start + 1)
    return bytes(changed)


def _checksum(page: bytes) -> bytes:
    """Ogg's CRC, bit by bit as RFC 3533 states it."""
    value = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        value = (value << 8) & 0xFFFF_FFFF ^ _TABLE[value >> 24 ^ byte]
    return value.to_bytes(4, "little")


def _entry(value: int) -> int:
    value <<= 24
    for _ in range(8):
        value = value << 1 ^ 0x104C11DB7 if value & 0x8000_0000 else value << 1
    return value & 0xFFFF_FFFF


_TABLE = [_entry(value) for value in range(256)]


def read_ogg(data: bytes) -> None:
    """Read a stream of Ogg pages, and require that its packets do not depend on how it is cut into pieces."""
    stream = sealed(data)
    pieces = [stream[at : at + 64] for at in range(0, len(stream), 64)]
    require(_packets([stream]) == _packets(pieces), "packets depend on how the stream comes")
    sound(make_decoder("ogg").feed(stream))


def _packets(pieces: list[bytes]) -> list[bytes] | str:
    reader = OggOpusReader()
    try:
        return [packet for piece in pieces for packet in reader.feed(piece)]
    except AudioError:
        return "refused"


def sound(pcm: FloatArray) -> None:
    """Require float32 ``[N]`` with finite values."""
    require(pcm.dtype == np.float32 and pcm.ndim == 1, f"sound of {pcm.dtype} {pcm.shape}")
    require(bool(np.isfinite(pcm).all()), "sound that is not finite")


def read_payload(data: bytes) -> None:
    """Read a message of audio in one of the accepted codecs, chosen by the first byte."""
    names = [name for name, codec in CODECS.items() if codec.decoder is not None]
    name = names[data[0] % len(names)] if data else "opus"
    sound(make_decoder(name).feed(data[1:]))


def read_packet(data: bytes) -> None:
    """Read an Opus packet, and require the same length after it is taken apart and joined again."""
    length_ms = packet_ms(data)
    parts = split_packet(data) if data else []
    require(sum(map(packet_ms, join_packets(parts))) == sum(map(packet_ms, parts)), "time is lost")
    require(not parts or sum(map(packet_ms, parts)) == length_ms, "parts of another length")


def read_mp4(data: bytes) -> None:
    """Read the numbers that an MP4 file states."""
    check_mp4(io.BytesIO(data))


def read_recording(data: bytes) -> None:
    """Read a recording of any kind, as far as FFmpeg reads it."""
    file = io.BytesIO(data)
    container_of(data[:12])
    seconds = stated_seconds(file)
    require(seconds is None or seconds >= 0, f"a recording of {seconds} seconds")
    require(stated_rate(file) > 0, "a recording without a rate")
    for pcm in itertools.islice(decode_pieces(file, 24_000), MAX_PIECES):
        sound(pcm)


TARGETS = {
    "ogg": Target(read_ogg, (AudioError,), max_bytes=2048),
    "payload": Target(read_payload, (AudioError,)),
    "packet": Target(read_packet, (AudioError,), max_bytes=512),
    "mp4": Target(read_mp4, (AudioError,)),
    "recording": Target(read_recording, (AudioError,), max_bytes=4096),
}

"""Seeded invalid data of every layer: values, garbled messages, broken Ogg pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np

from antiphon.audio.ogg import OggOpusWriter

Random: TypeAlias = np.random.Generator

GIANT: Final = (2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1, -1, -(2**63))
TEXTS: Final = ("", "\0", "a" * 300, "\U0001f600" * 40, '<break time="1e999s"/>', "../../etc/passwd", "%00")
DEEP_JSON: Final = b'{"a":' * 3000
DEEP_MSGPACK: Final = b"\x81\xa1a" * 3000


def random_value(random: Random, depth: int = 0) -> Any:
    """Anything that JSON and msgpack can say, giants and what is no number among it."""
    kinds = 6 if depth > 2 else 8
    match int(random.integers(kinds)):
        case 0:
            return GIANT[int(random.integers(len(GIANT)))]
        case 1:
            return (float("nan"), float("inf"), -0.0, 1e308, 0.5)[int(random.integers(5))]
        case 2:
            return TEXTS[int(random.integers(len(TEXTS)))]
        case 3:
            return (None, True, False)[int(random.integers(3))]
        case 4:
            return [int(size) for size in random.integers(-2, 5, random.integers(4))]
        case 5:
            return random.normal(size=int(random.integers(30))).tolist()
        case 6:
            return [random_value(random, depth + 1) for _ in range(int(random.integers(4)))]
        case _:
            keys = random.integers(len(TEXTS), size=int(random.integers(4)))
            return {TEXTS[int(key)]: random_value(random, depth + 1) for key in keys}


def packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def garbled(random: Random, data: bytes) -> bytes:
    """A message with a few bytes changed, cut short, or with more behind it."""
    values = bytearray(data)
    for place in random.integers(len(values), size=3):
        values[int(place)] = int(random.integers(256))
    return bytes(values[: int(random.integers(1, len(values) + 1))]) + random.bytes(int(random.integers(3)))


def broken_oggs(random: Random) -> Iterator[bytes]:
    """Pages that are none, headers that lie, packets that are no Opus."""
    writer = OggOpusWriter(7)
    headers = writer.headers()
    yield b"OggS" + random.bytes(200)
    yield b"OggS\0\2" + bytes(20) + b"\xff" + b"\xff" * 255 + bytes(1000)
    yield garbled(random, headers)
    yield headers + writer.page([random.bytes(30), b""], 960)
    yield headers + headers
    yield headers.replace(b"OpusTags\x08\0\0\0", b"OpusTags\xff\xff\xff\xff")
    yield headers + writer.page([b"\xff" * 1275] * 4, 2**40)

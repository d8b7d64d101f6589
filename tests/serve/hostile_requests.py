"""Queries, headers and frames that break the rules of HTTP and of WebSocket."""

from __future__ import annotations

from typing import Final

from tests.serve.hostile_values import Random

UPGRADE: Final = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def queries(random: Random) -> list[str]:
    """Queries no client of ours would send."""
    keys = (
        "model",
        "format",
        "wait",
        "voice",
        "ext",
        "text_temperature",
        "audio_topk",
        "text_seed",
        "auth_id",
    )
    values = (
        "nan",
        "-1",
        "1e999",
        "9" * 400,
        "%00",
        "%ff%fe",
        "../../..",
        "'\"<b>",
        "0x10",
        "",
        "1&1",
        "%F0%9F",
    )
    chosen = [
        "&".join(f"{keys[int(key)]}={values[int(random.integers(len(values)))]}" for key in row)
        for row in random.integers(len(keys), size=(20, 3))
    ]
    return [*chosen, "&" * 500, "=" * 500, "model=" + "m" * 3000]


def masked(opcode: int, payload: bytes, *, size: bytes | None = None) -> bytes:
    """A client's frame: its first byte, a length that may be a lie, a mask of zeros."""
    length = size or (
        bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    )
    return bytes((opcode,)) + length + bytes(4) + payload


FRAMES: Final[dict[str, tuple[bytes, tuple[int, ...]]]] = {
    "an opcode nobody knows": (masked(0x83, b"abc"), (1002,)),
    "a reserved bit": (masked(0xC2, b"abc"), (1002,)),
    "a ping in pieces": (masked(0x09, b"abc"), (1002,)),
    "a ping too long": (masked(0x89, bytes(126)), (1002,)),
    "the rest of nothing": (masked(0x80, b"abc"), (1002, 1007)),
    "two beginnings": (masked(0x02, b"abc") + masked(0x82, b"abc"), (1002,)),
    "a message without an end": (masked(0x02, bytes(60_000)) + masked(0x00, bytes(60_000)) * 30, (1009,)),
    "a length of 2^40": (
        masked(0x82, bytes(70_000), size=b"\xff" + (2**40).to_bytes(8, "big")),
        (1009, 1002),
    ),
    "a length of 2^63": (masked(0x82, b"abc", size=b"\xff\x80" + bytes(7)), (1009, 1002)),
    "text that is not UTF-8": (masked(0x81, b"\xff\xfe"), (1007,)),
    "a close of one byte": (masked(0x88, b"\x03"), (1002,)),
    "a close code that cannot be": (masked(0x88, (999).to_bytes(2, "big")), (1002,)),
}
"""Frames against the rules of RFC 6455, and the close codes that may answer them."""


REQUESTS: Final[dict[str, tuple[str, str]]] = {
    "a length beyond all numbers": ("Content-Length: 99999999999999999999", "abc"),
    "a length that never comes": ("Content-Length: 60000", "abc"),
    "a length of a terabyte": ("Content-Length: 1000000000000", "abc"),
    "a negative length": ("Content-Length: -1", "abc"),
    "two lengths": ("Content-Length: 3\r\nContent-Length: 30", "abc"),
    "a length and pieces": (
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "0\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    ),
    "a piece of no size": ("Transfer-Encoding: chunked", "xyz\r\nabc\r\n"),
    "a piece of 2^60 bytes": ("Transfer-Encoding: chunked", "1000000000000000\r\nabc"),
    "a header without a colon": ("Content-Length", ""),
    "a header of 70,000 letters": ("X-Long: " + "x" * 70_000, ""),
    "compression that is none": ("Content-Encoding: gzip\r\nContent-Length: 9", "\x1f\x8b\x08nogzip"),
}
"""Headers and bodies of a POST that no HTTP library would send."""

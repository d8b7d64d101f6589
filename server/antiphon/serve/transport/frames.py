"""WebSocket frames a server sends (RFC 6455, section 5.2): unmasked, unfragmented, uncompressed.

aiohttp frames and writes one message per coroutine. Here a codec thread frames all that one reply needs
(audio, text, an event), and the loop hands it to the network in one write.
"""

from __future__ import annotations

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA
_FINAL = 0x80

MAX_REASON_BYTES = 123
"""A close frame holds 125 bytes (RFC 6455, section 5.5), two of which are the code."""


def frame(payload: bytes, opcode: int = BINARY) -> bytes:
    """One whole frame around ``payload``."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, size)) + payload
    if size < 65536:
        return bytes((_FINAL | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big") + payload


def close_frame(code: int, reason: str) -> bytes:
    """A close frame: what does not fit into it of the reason is left out."""
    # An error may quote what UTF-8 cannot hold: a file's name with half of a surrogate pair.
    words = reason.encode(errors="replace")[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return frame(code.to_bytes(2, "big") + words, CLOSE)

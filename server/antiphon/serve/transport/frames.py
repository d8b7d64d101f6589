"""WebSocket frames a server sends (RFC 6455, section 5.2): unmasked, unfragmented, uncompressed.

aiohttp frames and writes one message per coroutine. Here a codec thread frames all that one reply needs
(audio, text, an event), and the loop hands it to the network in one write.
"""

from __future__ import annotations

BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA
_FINAL = 0x80


def frame(payload: bytes, opcode: int = BINARY) -> bytes:
    """One whole frame around ``payload``."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, size)) + payload
    if size < 65536:
        return bytes((_FINAL | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big") + payload

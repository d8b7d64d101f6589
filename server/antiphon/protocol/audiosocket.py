"""AudioSocket, Asterisk's protocol for the audio of one call over TCP: messages to bytes and back.

Derived from the protocol's public description (docs.asterisk.org, "AudioSocket") and from what Asterisk's
main branch of August 2026 sends. A message is one byte of kind, two bytes of length (big endian), and the
payload. PCM is signed, 16 bits, little endian, mono, usually 20 ms a message.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from antiphon.errors import ProtocolError

HANG_UP, UUID, DIGIT, FAILED = 0x00, 0x01, 0x03, 0xFF
RATES: Final[Mapping[int, int]] = MappingProxyType(
    {0x10: 8_000, 0x11: 12_000, 0x12: 16_000, 0x13: 24_000, 0x14: 32_000, 0x15: 44_100, 0x16: 48_000}
)
"""The rate of each kind of audio. 96 and 192 kHz are not accepted."""

KINDS: Final = MappingProxyType({rate: kind for kind, rate in RATES.items()})

HEAD_BYTES: Final = 3
UUID_BYTES: Final = 16
SAMPLE_BYTES: Final = 2
MAX_AUDIO_BYTES: Final = 16_384
"""Maximum bytes of audio in a message: a second at 8 kHz. Asterisk sends 20 ms a message."""

LIMITS: Final[Mapping[int, int]] = MappingProxyType(
    {HANG_UP: 0, UUID: UUID_BYTES, DIGIT: 1, FAILED: 16, **dict.fromkeys(RATES, MAX_AUDIO_BYTES)}
)
"""The longest payload of each kind."""

FAREWELL: Final = bytes(HEAD_BYTES)
"""The message that hangs up."""


@dataclass(frozen=True, slots=True)
class CallNamed:
    """The first message: the call's name in Asterisk."""

    id: str


@dataclass(frozen=True, slots=True)
class CallerAudio:
    """Audio of the caller, and its sample rate."""

    rate: int
    pcm: bytes


@dataclass(frozen=True, slots=True)
class CallerDigit:
    """The caller has pressed a key."""

    digit: str


@dataclass(frozen=True, slots=True)
class CallOver:
    """The end of the call, or an error of Asterisk."""


AudioSocketMessage: TypeAlias = CallNamed | CallerAudio | CallerDigit | CallOver


def size_of(data: bytearray) -> int | None:
    """The length in bytes of the message at the start of ``data``; None while its head is incomplete.

    Raises:
        ProtocolError: the bytes are not a message, or the message is too long.
    """
    limit = LIMITS.get(data[0])
    if limit is None:
        raise ProtocolError(f"a message of the kind {data[0]:#04x}, AudioSocket has no such kind here")
    if len(data) < HEAD_BYTES:
        return None
    size = int.from_bytes(data[1:HEAD_BYTES], "big")
    if size > limit:
        raise ProtocolError(f"a message of the kind {data[0]:#04x} with {size} bytes, the limit is {limit}")
    return HEAD_BYTES + size


def decode(message: bytes | str) -> AudioSocketMessage:
    """Decode one message.

    Raises:
        ProtocolError: its payload does not fit its kind.
    """
    whole = message if isinstance(message, bytes) else message.encode()
    kind, payload = whole[0], whole[HEAD_BYTES:]
    if kind in RATES:
        if len(payload) % SAMPLE_BYTES:
            raise ProtocolError(f"audio of {len(payload)} bytes, samples have {SAMPLE_BYTES}")
        return CallerAudio(RATES[kind], payload)
    if kind == UUID:
        if len(payload) != UUID_BYTES:
            raise ProtocolError(f"a UUID of {len(payload)} bytes, it has {UUID_BYTES}")
        return CallNamed(str(uuid.UUID(bytes=payload)))
    if kind == DIGIT:
        return CallerDigit(payload.decode("ascii", "replace"))
    return CallOver()


def encode_audio(rate: int, pcm: bytes) -> bytes:
    """Encode audio, which Asterisk plays at once."""
    return bytes((KINDS[rate],)) + len(pcm).to_bytes(2, "big") + pcm

"""Messages of resumable calls: numbered text and events, acknowledgements, and the claim.

Tag 0x12 from a server: u32 seq, counted from 0 without a gap, then a whole message (text or an event). Tag
0x12 from a client: u32 seq and u32 frame of the last message and audio received, NONE for none. Tag 0x13, the
first message of a connection that resumes a call: a version and the last received numbers. All numbers are
little endian.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import struct
from dataclasses import dataclass
from typing import Final

from antiphon.errors import ProtocolError

NUMBERED: Final = 0x12
CLAIM: Final = 0x13
VERSION: Final = 1
TOKEN_BYTES: Final = 16
NONE: Final = 0xFFFF_FFFF
"""The value for no number."""

REPLAY_MS: Final = 400
"""Maximum audio in ms that the server sends again after a broken connection; a client keeps the same amount.
"""

_SEQ = struct.Struct("<I")
_HEAD = struct.Struct("<BI")
_ACK = struct.Struct("<II")
_CLAIM = struct.Struct(f"<B{TOKEN_BYTES}sIII")


@dataclass(frozen=True, slots=True)
class Ack:
    """The last ``seq`` and the last ``frame`` of audio that a client received; -1 means none."""

    seq: int
    frame: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A client's claim to a call that it resumes; -1 means none.

    ``input_frame`` is the first frame of audio that the client can still send.
    """

    token: bytes
    seq: int
    frame: int
    input_frame: int


def new_token() -> bytes:
    """A token that is valid for one resumption."""
    return secrets.token_bytes(TOKEN_BYTES)


def token_text(token: bytes) -> str:
    """The text form of a token in events: base64url without padding."""
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode("ascii")


def token_of(text: str) -> bytes:
    """Decode the result of :func:`token_text`.

    Raises:
        ProtocolError: the text is not a token.
    """
    try:
        token = base64.urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ProtocolError(f"a token of {len(text)} characters that is no base64url: {error}") from error
    if len(token) != TOKEN_BYTES:
        raise ProtocolError(f"a token of {len(token)} bytes, it has {TOKEN_BYTES}")
    return token


def token_key(token: bytes) -> bytes:
    """The stored form of a token: its SHA-256."""
    return hashlib.sha256(token).digest()


def encode_numbered(seq: int, message: bytes) -> bytes:
    """Encode a message with its number."""
    return _HEAD.pack(NUMBERED, seq) + message


def decode_numbered(payload: bytes) -> tuple[int, bytes]:
    """Decode the number of a message and the message from the bytes after the tag.

    Raises:
        ProtocolError: the bytes contain no message.
    """
    if len(payload) <= _SEQ.size:
        raise ProtocolError(
            f"a numbered message with {len(payload)} bytes after its tag, 5 or more are needed"
        )
    return _SEQ.unpack_from(payload)[0], payload[_SEQ.size :]


def encode_ack(ack: Ack) -> bytes:
    """Encode an acknowledgement."""
    return bytes((NUMBERED,)) + _ACK.pack(_or_none(ack.seq), _or_none(ack.frame))


def decode_ack(payload: bytes) -> Ack:
    """Decode an acknowledgement from the bytes after the tag.

    Raises:
        ProtocolError: its length is wrong.
    """
    if len(payload) != _ACK.size:
        raise ProtocolError(f"an acknowledgement with {len(payload)} bytes after its tag, it has {_ACK.size}")
    return Ack(*map(_or_minus_one, _ACK.unpack(payload)))


def encode_claim(claim: Claim) -> bytes:
    """Encode the first message of a connection that resumes a call."""
    counts = (_or_none(claim.seq), _or_none(claim.frame), claim.input_frame)
    return bytes((CLAIM,)) + _CLAIM.pack(VERSION, claim.token, *counts)


def decode_claim(message: bytes) -> Claim:
    """Decode the result of :func:`encode_claim`.

    Raises:
        ProtocolError: the bytes are not a claim, or have another version.
    """
    if len(message) != 1 + _CLAIM.size or message[0] != CLAIM:
        raise ProtocolError(
            f"a connection that resumes begins with tag 0x13 and {_CLAIM.size} bytes, "
            f"got {message[:1].hex() or 'nothing'} and {max(0, len(message) - 1)}"
        )
    version, token, seq, frame, input_frame = _CLAIM.unpack_from(message, 1)
    if version != VERSION:
        raise ProtocolError(f"a claim of version {version}, {VERSION} is known")
    return Claim(token, _or_minus_one(seq), _or_minus_one(frame), input_frame)


def _or_none(number: int) -> int:
    return NONE if number < 0 else number


def _or_minus_one(number: int) -> int:
    return -1 if number == NONE else number

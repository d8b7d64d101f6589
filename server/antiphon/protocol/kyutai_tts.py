"""``/api/tts_streaming`` of Kyutai's servers, text to speech: messages to bytes and back.

The peers are ``rust/moshi-server`` (``py_module.rs``, ``tts.rs``) of kyutai-labs/moshi and the clients of
kyutai-labs/delayed-streams-modeling and kyutai-labs/unmute. ``docs/protocol.md`` describes the messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

import msgpack

from antiphon.arrays import FloatArray
from antiphon.errors import ProtocolError
from antiphon.protocol import kyutai
from antiphon.protocol.chat import parse_wait
from antiphon.protocol.packed import (
    field_of,
    read_bytes,
    read_floats,
    read_number,
    read_text,
)
from antiphon.protocol.payload import decode_object

PATH: Final = "/api/tts_streaming"

END: Final = b"\0"
"""The binary message that ends the text, from clients without msgpack."""

MAX_TEXT_BYTES: Final = 65_536
"""Maximum number of bytes of text in one message, in UTF-8: an hour of speech. A POST has the same limit."""

MAX_VOICE_DIMENSIONS: Final = 3


class SpeechFormat(StrEnum):
    """The encoding of the server's speech, from the query."""

    PCM_PACKED = "PcmMessagePack"
    OGG_PACKED = "OggOpusMessagePack"
    PCM = "Pcm"
    OGG = "OggOpus"

    @property
    def is_packed(self) -> bool:
        """Whether the client receives messages, and not only audio."""
        return self in (SpeechFormat.PCM_PACKED, SpeechFormat.OGG_PACKED)

    @property
    def is_ogg(self) -> bool:
        """Whether audio is one Ogg/Opus stream; otherwise it is float32 at 24 kHz."""
        return self in (SpeechFormat.OGG_PACKED, SpeechFormat.OGG)


@dataclass(frozen=True, slots=True)
class TtsQuery:
    """The parsed query of a request."""

    format: SpeechFormat = SpeechFormat.OGG
    voice: str | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Text:
    """Words to speak: whole words, and ``<break time="1.5s"/>``."""

    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A client's voice, before any text: flat float32 values, and their shape."""

    embeddings: FloatArray
    shape: tuple[int, ...]

    def array(self) -> FloatArray:
        """The embeddings in their shape."""
        return self.embeddings.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Eos:
    """The end of the text."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A word and its time, in seconds of the audio sent. On the wire it is a ``Text`` too.

    A word without a duration is not spoken, because the model cannot pronounce it.
    """

    text: str
    start_s: float
    stop_s: float

    @property
    def is_heard(self) -> bool:
        """Whether the word has a duration."""
        return self.stop_s > self.start_s


ClientMessage: TypeAlias = Text | Voice | Eos
ServerMessage: TypeAlias = kyutai.Ready | kyutai.Audio | kyutai.OggOpus | Spoken | kyutai.Error


def parse_query(query: Mapping[str, str], *, max_wait_s: float) -> TtsQuery:
    """Parse the query; unknown keys are ignored. ``max_wait_s`` bounds the wait.

    Raises:
        ProtocolError: the format is unknown, or the wait is not a valid time.
    """
    name = query.get("format", SpeechFormat.OGG)
    if name not in list(SpeechFormat):
        raise ProtocolError(f"format is {name[:40]!r}; there is: {', '.join(SpeechFormat)}")
    return TtsQuery(SpeechFormat(name), query.get("voice") or None, parse_wait(query, max_wait_s))


def parse_post(data: bytes) -> tuple[str, str | None]:
    """The text and the voice of a POST, ``{"text": ..., "voice": ...}``; the voice is optional.

    Raises:
        ProtocolError: the body is anything else.
    """
    values = decode_object(data, "the request")
    voice = values.get("voice")
    if voice is not None and not isinstance(voice, str):
        raise ProtocolError(f"voice is a {type(voice).__name__}, text is needed")
    return read_text(values, "text", "the request"), voice or None


def decode_client(data: bytes | str) -> ClientMessage:
    """Decode a client's message from a text frame or a binary frame.

    Raises:
        ProtocolError: not msgpack, an unknown message, a field that is missing or of the wrong type, or a
            text that is too long.
    """
    if isinstance(data, str):
        return _text(data)
    if data == END:
        return Eos()
    return kyutai.decode(data, _CLIENT)


def _text(text: str) -> Text:
    # A character takes at most four bytes, so only texts that may be too long are counted.
    if 4 * len(text) > MAX_TEXT_BYTES and (size := len(text.encode(errors="replace"))) > MAX_TEXT_BYTES:
        raise ProtocolError(f"a text of {size} bytes, the limit is {MAX_TEXT_BYTES}; send it in several")
    return Text(text)


def _voice(values: dict[str, Any]) -> Voice:
    shape = field_of(values, "shape", "Voice")
    is_shape = isinstance(shape, list) and 1 <= len(shape) <= MAX_VOICE_DIMENSIONS
    if not is_shape or not all(type(size) is int and size > 0 for size in shape):
        raise ProtocolError(f"Voice.shape is {str(shape)[:40]}, 1 to {MAX_VOICE_DIMENSIONS} sizes are needed")
    embeddings = read_floats(values, "embeddings", "Voice")
    if math.prod(shape) != embeddings.size:
        raise ProtocolError(
            f"Voice has {embeddings.size} numbers, its shape {shape} needs {math.prod(shape)}"
        )
    return Voice(embeddings, tuple(shape))


def encode_client(message: ClientMessage) -> bytes:
    """Encode a client's message as msgpack."""
    if isinstance(message, Voice):
        values = {"embeddings": message.embeddings.tolist(), "shape": list(message.shape)}
    else:
        values = {"text": message.text} if isinstance(message, Text) else {}
    packed = msgpack.packb({"type": type(message).__name__, **values}, use_single_float=True)
    return cast("bytes", packed)


def encode_server(message: ServerMessage) -> bytes:
    """Encode a server's message as msgpack."""
    if isinstance(message, kyutai.Audio | kyutai.Ready | kyutai.Error | kyutai.OggOpus):
        return kyutai.encode(message)
    values = {"type": "Text", "text": message.text, "start_s": message.start_s, "stop_s": message.stop_s}
    return cast("bytes", msgpack.packb(values))


def decode_server(data: bytes) -> ServerMessage:
    """Decode a server's message.

    Raises:
        ProtocolError: not msgpack, an unknown message, or a field that is missing or of the wrong type.
    """
    return kyutai.decode(data, _SERVER)


_CLIENT: Final[Mapping[str, Callable[[dict[str, Any]], ClientMessage]]] = {
    "Text": lambda values: _text(read_text(values, "text", "Text")),
    "Voice": _voice,
    "Eos": lambda _: Eos(),
}
_SERVER: Final[Mapping[str, Callable[[dict[str, Any]], ServerMessage]]] = {
    "Text": lambda values: Spoken(
        read_text(values, "text", "Text"), *(read_number(values, it, "Text") for it in ("start_s", "stop_s"))
    ),
    "Audio": lambda values: kyutai.Audio(read_floats(values, "pcm", "Audio")),
    "OggOpus": lambda values: kyutai.OggOpus(read_bytes(values, "data", "OggOpus")),
    "Ready": lambda _: kyutai.Ready(),
    "Error": lambda values: kyutai.Error(read_text(values, "message", "Error")),
}

"""Wyoming, the protocol of Home Assistant's speech services: events over TCP, to bytes and back.

Derived from the protocol's public description (github.com/OHF-voice/wyoming, 1.10 of August 2026). An event
is a line of JSON, ``{"type", "data_length", "payload_length"}``, then the stated numbers of bytes of JSON and
of PCM. Older peers put the data into the line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from antiphon import __version__
from antiphon.errors import ProtocolError
from antiphon.protocol.kyutai_tts import MAX_TEXT_BYTES
from antiphon.values import shown

MAX_JSON_BYTES: Final = 2 * MAX_TEXT_BYTES
"""Limit on the bytes of an event's line, and of its data: enough for the longest text with escapes."""

MAX_PAYLOAD_BYTES: Final = 262_144
"""Limit on the bytes of an event's audio: 2.7 s of stereo at 24 kHz. Clients send 20 to 130 ms."""

MAX_PING_CHARS: Final = 256
"""Limit on the characters of a ping's text, which its answer repeats."""

MAX_CHANNELS: Final = 2
SAMPLE_BYTES: Final = 2
RATES: Final = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Accepted sampling rates: those of common sound devices and telephones."""

ATTRIBUTION: Final[Mapping[str, str]] = MappingProxyType({"name": "Antiphon", "url": ""})

T = TypeVar("T")

_Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]


@dataclass(frozen=True, slots=True)
class AudioForm:
    """A format of PCM audio, whose samples are signed and little endian."""

    rate: int
    channels: int = 1


@dataclass(frozen=True, slots=True)
class Describe:
    """Request the list of services."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping; the server's answer repeats ``text``."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class NameModel:
    """Transcribe the following audio with the model of this name."""

    model: str | None = None


@dataclass(frozen=True, slots=True)
class AudioStart:
    """The audio begins."""

    form: AudioForm


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of audio."""

    form: AudioForm
    pcm: bytes


@dataclass(frozen=True, slots=True)
class AudioStop:
    """The audio ends."""


@dataclass(frozen=True, slots=True)
class Synthesize:
    """A text to speak, in the voice of this name."""

    text: str
    voice: str | None = None


@dataclass(frozen=True, slots=True)
class SynthesizeStart:
    """The start of a text to speak, which is sent in pieces."""

    voice: str | None = None


@dataclass(frozen=True, slots=True)
class SynthesizeChunk:
    """A piece of a text, not always of whole words."""

    text: str


@dataclass(frozen=True, slots=True)
class SynthesizeStop:
    """The text ends."""


@dataclass(frozen=True, slots=True)
class UserText:
    """A person's words for an agent to answer: an event ``transcript``."""

    text: str


WyomingEvent: TypeAlias = (
    Describe
    | Ping
    | NameModel
    | AudioStart
    | AudioChunk
    | AudioStop
    | Synthesize
    | SynthesizeStart
    | SynthesizeChunk
    | SynthesizeStop
    | UserText
)


class _Voice(msgspec.Struct):
    name: _Name | None = None


class _Data(msgspec.Struct):
    text: str | None = None
    name: _Name | None = None
    voice: _Voice | None = None
    rate: int | None = None
    width: int | None = None
    channels: int | None = None


class _Line(msgspec.Struct):
    type: _Name
    data: _Data | None = None
    data_length: _Length | None = None
    payload_length: _Length | None = None


_LINE: Final = msgspec.json.Decoder(_Line)
_DATA: Final = msgspec.json.Decoder(_Data)


def size_of(data: bytearray) -> int | None:
    """The length in bytes of the event at the start of ``data``; None while its line is incomplete.

    Raises:
        ProtocolError: the bytes are not an event, or the event is too long.
    """
    end = data.find(b"\n", 0, MAX_JSON_BYTES + 1)
    if data[:1] != b"{" or (end < 0 and len(data) > MAX_JSON_BYTES):
        raise ProtocolError(f"an event begins with a line of JSON of at most {MAX_JSON_BYTES} bytes")
    if end < 0:
        return None
    line = _read(_LINE, bytes(data[:end]))
    lengths = (line.data_length or 0, line.payload_length or 0)
    for what, size, most in zip(("data", "audio"), lengths, (MAX_JSON_BYTES, MAX_PAYLOAD_BYTES), strict=True):
        if size > most:
            raise ProtocolError(f"an event with {size} bytes of {what}, the limit is {most}")
    return end + 1 + sum(lengths)


def decode(message: bytes | str) -> WyomingEvent | None:
    """Decode one event; return None for an event that this server ignores.

    Raises:
        ProtocolError: the event does not belong to this protocol, or its audio has an unsupported form.
    """
    whole = message if isinstance(message, bytes) else message.encode()
    head, _, rest = whole.partition(b"\n")
    line = _read(_LINE, head)
    data = line.data or _Data()
    if line.data_length:
        own = _read(_DATA, rest[: line.data_length])
        for name in _Data.__struct_fields__:
            if getattr(own, name) is not None:
                setattr(data, name, getattr(own, name))
    return _event(line.type, data, rest[line.data_length or 0 :])


def _event(kind: str, data: _Data, payload: bytes) -> WyomingEvent | None:
    voice = None if data.voice is None else data.voice.name or None
    match kind:
        case "describe":
            return Describe()
        case "ping":
            if (size := len(data.text or "")) > MAX_PING_CHARS:
                raise ProtocolError(f"a ping with a text of {size} characters, the limit is {MAX_PING_CHARS}")
            return Ping(data.text)
        case "transcribe":
            return NameModel(data.name or None)
        case "audio-start":
            return AudioStart(_form(kind, data))
        case "audio-chunk":
            return AudioChunk(_form(kind, data), payload)
        case "audio-stop":
            return AudioStop()
        case "synthesize":
            return Synthesize(_text(kind, data), voice)
        case "synthesize-start":
            return SynthesizeStart(voice)
        case "synthesize-chunk":
            return SynthesizeChunk(_text(kind, data))
        case "synthesize-stop":
            return SynthesizeStop()
        case "transcript":
            return UserText(_text(kind, data))
    return None


def _text(kind: str, data: _Data) -> str:
    if data.text is None:
        raise ProtocolError(f"the event {kind} lacks 'text'")
    if (size := len(data.text.encode(errors="replace"))) > MAX_TEXT_BYTES:
        raise ProtocolError(f"a text of {size} bytes, the limit is {MAX_TEXT_BYTES}")
    return data.text


def _form(kind: str, data: _Data) -> AudioForm:
    rate, width, channels = data.rate, data.width, data.channels
    if rate not in RATES or width != SAMPLE_BYTES or channels not in range(1, MAX_CHANNELS + 1):
        raise ProtocolError(
            f"{kind}: rate {shown(rate)}, width {shown(width)}, channels {shown(channels)}; read are "
            f"{', '.join(map(str, RATES))} Hz, width {SAMPLE_BYTES} and 1 to {MAX_CHANNELS} channels"
        )
    return AudioForm(rate or 0, channels or 0)


def _read(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{len(data)} bytes of JSON are no part of an event: {error}") from error


def encode(kind: str, data: Mapping[str, Any] | None = None, payload: bytes = b"") -> bytes:
    """Encode an event of a server."""
    body = b"" if data is None else json.dumps(data, ensure_ascii=False).encode(errors="replace")
    line: dict[str, Any] = {"type": kind, "version": __version__}
    if body:
        line["data_length"] = len(body)
    if payload:
        line["payload_length"] = len(payload)
    return json.dumps(line).encode() + b"\n" + body + payload


def encode_audio(rate: int, pcm: bytes) -> bytes:
    """Encode a piece of mono audio."""
    return encode("audio-chunk", {"rate": rate, "width": SAMPLE_BYTES, "channels": 1}, pcm)


@dataclass(frozen=True, slots=True)
class Offer:
    """A recogniser, a voice or an agent, and its languages."""

    name: str
    description: str
    languages: Sequence[str]


def encode_info(recognisers: Sequence[Offer], voices: Sequence[Offer], agents: Sequence[Offer]) -> bytes:
    """Encode the list of services: one program for transcription, one for speech, and one for answers in
    text.
    """
    programs = {
        "asr": _program(
            recognisers, "models", supports_transcript_streaming=True, prefers_noise_reduction_enabled=False
        ),
        "tts": _program(voices, "voices", supports_synthesize_streaming=True),
        "handle": _program(agents, "models", supports_handled_streaming=True, supports_home_control=False),
    }
    return encode("info", programs)


def _program(offers: Sequence[Offer], what: str, **traits: bool) -> list[dict[str, Any]]:
    if not offers:
        return []
    listed = [{**_artifact(it.name, it.description), "languages": list(it.languages)} for it in offers]
    return [{**_artifact("antiphon", "Antiphon"), what: listed, **traits}]


def _artifact(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "attribution": dict(ATTRIBUTION),
        "installed": True,
        "description": description,
        "version": __version__,
    }

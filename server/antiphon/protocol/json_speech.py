"""The JSON speech dialect: ``/api/speech/asr`` and ``/api/speech/tts``, messages to values and back.

Derived from the dialect's public clients as of November 2026. A message is a JSON object that names its
``type``; audio is base64. The dialect offers the functions of Kyutai's streaming recognition and synthesis.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from antiphon.errors import ProtocolError
from antiphon.protocol.kyutai_tts import MAX_TEXT_BYTES, Spoken

ASR_PATH: Final = "/api/speech/asr"
TTS_PATH: Final = "/api/speech/tts"

MAX_MESSAGE_CHARS: Final = 262_144
"""Longest message: the base64 of four seconds of audio at 24 kHz; clients send 80 ms."""

MAX_AUDIO_BYTES: Final = 131_072
WAV: Final = "wav"
"""The format if a setup names none."""

HORIZONS_S: Final = (0.5, 1.0, 2.0, 3.0)
"""The lengths in seconds of the pauses that the probabilities are for."""

_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]


@dataclass(frozen=True, slots=True)
class SpeechSetup:
    """The first message of a request: its format, the wanted model and voice, and the client's name for the
    request.

    With ``keeps_open`` the connection stays for further requests.
    """

    form: str
    model: str | None = None
    voice: str | None = None
    request: str | None = None
    keeps_open: bool = False


@dataclass(frozen=True, slots=True)
class SpeechAudio:
    """A piece of the client's audio."""

    data: bytes


@dataclass(frozen=True, slots=True)
class SpeechText:
    """Words to speak; ``request`` is the client's name for the request, if any."""

    text: str
    request: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechFlush:
    """Request the transcript of the audio so far; the server repeats ``id`` at the end of the transcript."""

    id: int | str


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """The end of the input; ``request`` is the client's name for the request, if any."""

    request: str | None = None


SpeechMessage: TypeAlias = SpeechSetup | SpeechAudio | SpeechText | SpeechFlush | SpeechEnd


class _Message(msgspec.Struct):
    type: _Name = ""
    model_name: _Name | None = None
    voice: _Name | None = None
    voice_id: _Name | None = None
    input_format: _Name | None = None
    output_format: _Name | None = None
    close_ws_on_eos: bool | None = None
    client_req_id: _Name | None = None
    audio: bytes | None = None
    text: str | None = None
    flush_id: int | _Name = 0


_DECODER: Final = msgspec.json.Decoder(_Message)


def decode(message: bytes | str) -> SpeechMessage | None:
    """Decode a client's message; return None for a message of an unknown type.

    Raises:
        ProtocolError: the message does not belong to this dialect.
    """
    if isinstance(message, bytes):
        raise ProtocolError(f"a binary message of {len(message)} bytes, messages are JSON text")
    if len(message) > MAX_MESSAGE_CHARS:
        raise ProtocolError(f"a message of {len(message)} characters, the limit is {MAX_MESSAGE_CHARS}")
    try:
        read = _DECODER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a message of {len(message)} characters is none here: {error}") from error
    match read.type:
        case "setup":
            return SpeechSetup(
                read.input_format or read.output_format or WAV,
                read.model_name,
                read.voice_id or read.voice,
                read.client_req_id,
                keeps_open=read.close_ws_on_eos is False,
            )
        case "audio":
            return SpeechAudio(_needed(read.audio, "audio"))
        case "text":
            text = _needed(read.text, "text")
            if (size := len(text.encode(errors="replace"))) > MAX_TEXT_BYTES:
                raise ProtocolError(f"a text of {size} bytes, the limit is {MAX_TEXT_BYTES}")
            return SpeechText(text, read.client_req_id)
        case "flush":
            return SpeechFlush(read.flush_id)
        case "end_of_stream":
            return SpeechEnd(read.client_req_id)
    return None


def _needed(value: Any, what: str) -> Any:
    if value is None:
        raise ProtocolError(f"type is {what}, and there is no {what} in the message")
    return value


def encode(kind: str, request: str | None = None, **fields: Any) -> str:
    """Encode a message of the server, with the client's name for the request."""
    named = {} if request is None else {"client_req_id": request}
    return msgspec.json.encode({"type": kind, **fields, **named}).decode()


def encode_audio(data: bytes, request: str | None) -> str:
    """Encode the message with a piece of the server's audio."""
    return encode("audio", request, audio=base64.b64encode(data).decode())


def encode_step(index: int, pauses: Sequence[float], frame_s: float) -> str:
    """The message that a frame was processed, with the probabilities of a pause."""
    vad = [
        {"horizon_s": horizon_s, "inactivity_prob": pause}
        for horizon_s, pause in zip(HORIZONS_S, pauses, strict=False)
    ]
    total_s = round(index * frame_s, 3)
    return encode("step", vad=vad, step_idx=index, step_duration_s=frame_s, total_duration_s=total_s)


def encode_spoken(word: Spoken, request: str | None) -> str:
    """A word of the speech, and its times."""
    return encode("text", request, text=word.text, start_s=word.start_s, stop_s=word.stop_s)

"""The messages of ``/api/asr-streaming``: speech to text, in the protocol of Kyutai's servers and clients.

Every WebSocket message is one msgpack map with the key ``type``. Source: ``InMsg`` and ``OutMsg`` of
rust/moshi-server/src/asr.rs in kyutai-labs/moshi, and scripts/stt_from_*_rust_server.py in
kyutai-labs/delayed-streams-modeling. ``docs/protocol.md`` describes them, ``tests/protocol/vectors/stt.json``
pins the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgpack
import numpy as np

from antiphon.arrays import FloatArray
from antiphon.errors import ProtocolError
from antiphon.protocol.packed import (
    finite,
    pack_floats,
    read_bytes,
    read_floats,
    read_int,
    read_number,
    read_text,
    unpack_floats,
    unpack_map,
)

PATH: Final = "/api/asr-streaming"

NO_FREE_CHANNELS: Final = "no free channels"
"""The exact message to a client when every row is in use."""

STEPS: Final = range(2**63)


@dataclass(frozen=True, slots=True)
class Init:
    """The first message of a client, which may omit it: the server is ready without it."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Any number of samples, float32 ``[N]``, 24 kHz mono."""

    pcm: FloatArray

    def __eq__(self, other: object) -> bool:
        """Whether the samples are the same."""
        return isinstance(other, Audio) and np.array_equal(self.pcm, other.pcm)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class OggOpus:
    """A piece of one Ogg/Opus stream, in any portions."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Marker:
    """A position in the audio; the server returns it once everything before it is transcribed.

    ``id`` is an i64.
    """

    id: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The server now accepts audio."""


@dataclass(frozen=True, slots=True)
class Step:
    """One frame was processed: the ``step_idx``-th of this session, counted from 1.

    ``prs[i]`` is the probability that a pause of 0.5, 1, 2, 3 s has begun; ``buffered_pcm`` is the number of
    waiting samples.
    """

    step_idx: int
    prs: tuple[float, ...]
    buffered_pcm: int


@dataclass(frozen=True, slots=True)
class Word:
    """A word and its start, in seconds of the client's audio."""

    text: str
    start_time: float


@dataclass(frozen=True, slots=True)
class EndWord:
    """The end of the last word, in seconds of the client's audio."""

    stop_time: float


@dataclass(frozen=True, slots=True)
class Error:
    """An error with its reason; the connection ends."""

    message: str


ClientMessage: TypeAlias = Init | Audio | OggOpus | Marker
ServerMessage: TypeAlias = Ready | Step | Word | EndWord | Marker | Error
M = TypeVar("M")

_AUDIO_HEAD: Final = b"\x82\xa4type\xa5Audio\xa3pcm"
"""The first bytes of every audio message that has only samples."""


def decode_client(data: bytes) -> ClientMessage:
    """Decode a client's message.

    Raises:
        ProtocolError: not msgpack, an unknown message, a field that is missing or of the wrong type, or
            samples that are not finite.
    """
    if data.startswith(_AUDIO_HEAD):
        samples = unpack_floats(data, len(_AUDIO_HEAD))
        if samples is not None:
            return Audio(finite(samples, "Audio.pcm"))
    return decode(data, _CLIENT)


def decode_server(data: bytes) -> ServerMessage:
    """Decode a server's message.

    Raises:
        ProtocolError: not msgpack, an unknown message, or a field that is missing or of the wrong type.
    """
    return decode(data, _SERVER)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """The bytes of a message: samples and probabilities in single precision, times in double.

    Raises:
        ProtocolError: a value that its field cannot hold.
    """
    if isinstance(message, Audio):
        return _AUDIO_HEAD + pack_floats(message.pcm)
    try:
        return cast("bytes", msgpack.packb(to_json(message), use_single_float=isinstance(message, Step)))
    except (ValueError, OverflowError) as error:  # half a surrogate pair, or beyond 64 bits
        raise ProtocolError(f"{type(message).__name__} cannot be sent: {error}") from error


def to_json(message: ClientMessage | ServerMessage) -> dict[str, Any]:
    """The message as a map, ``type`` first: the content of the msgpack, and of the reply to a POST."""
    fields = {name: getattr(message, name) for name in message.__slots__}
    if isinstance(message, Step):
        fields["prs"] = list(message.prs)
    return {"type": type(message).__name__, **fields}


def decode(data: bytes, kinds: Mapping[str, Callable[[dict[str, Any]], M]]) -> M:
    """Decode a message with the reader of its type.

    Raises:
        ProtocolError: not msgpack, an unknown type, or a field that is missing or of the wrong type.
    """
    values = unpack_map(data)
    kind = read_text(values, "type", "a message")
    if kind not in kinds:
        raise ProtocolError(
            f"a message of type {kind[:40]!r} is not known here; there are: {', '.join(kinds)}"
        )
    return kinds[kind](values)


_CLIENT: Final[Mapping[str, Callable[[dict[str, Any]], ClientMessage]]] = {
    "Init": lambda _: Init(),
    "Audio": lambda values: Audio(read_floats(values, "pcm", "Audio")),
    "OggOpus": lambda values: OggOpus(read_bytes(values, "data", "OggOpus")),
    "Marker": lambda values: Marker(read_int(values, "id", "Marker")),
}
_SERVER: Final[Mapping[str, Callable[[dict[str, Any]], ServerMessage]]] = {
    "Ready": lambda _: Ready(),
    "Step": lambda values: Step(
        read_int(values, "step_idx", "Step", STEPS),
        tuple(read_floats(values, "prs", "Step").tolist()),
        read_int(values, "buffered_pcm", "Step", STEPS),
    ),
    "Word": lambda values: Word(read_text(values, "text", "Word"), read_number(values, "start_time", "Word")),
    "EndWord": lambda values: EndWord(read_number(values, "stop_time", "EndWord")),
    "Marker": lambda values: Marker(read_int(values, "id", "Marker")),
    "Error": lambda values: Error(read_text(values, "message", "Error")),
}

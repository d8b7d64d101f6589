"""Messages between front ends and an engine beside the arrays, as values and as bytes (msgpack).

A ``call`` is a session's id, a ``model`` the number of an engine. A lease is counted from the pool's first.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from antiphon import errors
from antiphon.backends.base import BackendInfo, TextEntry
from antiphon.errors import AntiphonError, ProtocolError, ServerFullError, SessionFailedError
from antiphon.ipc.resumption import Note
from antiphon.models.prompt import Prompt
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind

Parts: TypeAlias = list[Any]
"""A prompt's arrays, ``[type, shape]`` or None each; their bytes, in a row, come as a descriptor."""

FORMS: Final = (("<i4", 2), ("<f4", 2), ("<f4", 2), ("<f4", 3), ("<f4", 5))
"""Type and number of axes of a prompt's arrays: frames, voice, embedded, speakers, keys_values."""

MAX_PROMPT_BYTES: Final = 256 << 20
"""Some minutes of embedded persona; what is larger is a mistake."""


class Open(NamedTuple):
    """A caller comes."""

    model: int
    call: str
    parameters: dict[str, Any]
    wait_s: float
    prompt: Parts | None


class Check(NamedTuple):
    """Would a caller be taken?"""

    model: int
    number: int
    wait_s: float


class SetParameters(NamedTuple):
    """Other parameters from the next frame on."""

    call: str
    parameters: dict[str, Any]


class Prime(NamedTuple):
    """A prompt for a row that has one already, or none."""

    call: str
    number: int
    prompt: Parts


class Words(NamedTuple):
    """Words to be spoken: tokens, text, padding, whether it is the last."""

    call: str
    entries: list[tuple[tuple[int, ...], str, int, bool]]
    received_s: float


class EndText(NamedTuple):
    """The text ends."""

    call: str


class ClearText(NamedTuple):
    """Words that wait are not to be spoken."""

    call: str


class HearPadding(NamedTuple):
    """Flush padding to be heard; ``tail`` is float32."""

    call: str
    run: int
    upto: int
    frames: int
    tail: bytes
    now_s: float


class Arm(NamedTuple):
    """The call can be resumed by what hashes to ``key``."""

    call: str
    key: bytes
    owner: str


class Noted(NamedTuple):
    """Numbered messages that are about to be sent."""

    call: str
    notes: tuple[Note, ...]
    told_frame: int


class Acknowledge(NamedTuple):
    """The client has got numbered messages up to this one."""

    call: str
    seq: int


class Detach(NamedTuple):
    """The call's connection is gone."""

    call: str


class Resume(NamedTuple):
    """A caller comes back; ``claim`` are the fields of a ResumeClaim."""

    model: int
    call: str
    claim: tuple[Any, ...]


class Close(NamedTuple):
    """The front end uses the call, and its lease, no more."""

    call: str


class Sent(NamedTuple):
    """Replies on their sockets; ``latencies`` and ``first_audio`` are float32 seconds."""

    model: int
    sent_s: float
    latencies: bytes
    late: int
    pressing: int
    first_audio: bytes
    refused: int


class Hello(NamedTuple):
    """The engines there are; beside it come the bell, then each one's memory and wake-up."""

    pool: int
    models: list[dict[str, Any]]


class Admitted(NamedTuple):
    """The call has this lease."""

    call: str
    lease: int


class Queued(NamedTuple):
    """The call waits."""

    call: str
    position: int
    retry_after_s: int


class Resumed(NamedTuple):
    """The call goes on with another; ``Admitted`` follows. The fields of a Resumption."""

    call: str
    first: str
    parameters: dict[str, Any]
    notes: tuple[Note, ...]
    next_seq: int
    told_frame: int
    replay_from: int
    replayed: int
    unrecorded_in: int
    unrecorded_out: int


class Moving(NamedTuple):
    """The call is to be let go: another worker gets it."""

    call: str


class Adopt(NamedTuple):
    """A call of another worker is to go on here; its state comes as a descriptor, ``Checked`` answers."""

    model: int
    number: int


class Refused(NamedTuple):
    """The call was not taken."""

    call: str
    error: list[Any]


class Primed(NamedTuple):
    """The call's row has read its prompt of this number."""

    call: str
    number: int


class Ended(NamedTuple):
    """The call is over."""

    call: str
    error: list[Any]


class Checked(NamedTuple):
    """The answer: None, or why not."""

    number: int
    error: list[Any] | None


class HealthNow(NamedTuple):
    """How an engine is."""

    model: int
    health: dict[str, Any]


Request: TypeAlias = (
    Arm
    | Noted
    | Acknowledge
    | Detach
    | Resume
    | Adopt
    | Open
    | Check
    | SetParameters
    | Prime
    | Words
    | EndText
    | ClearText
    | HearPadding
    | Close
    | Sent
)
"""From a front end."""

Notice: TypeAlias = (
    Resumed | Moving | Hello | Admitted | Queued | Refused | Primed | Ended | Checked | HealthNow
)
"""From an engine."""

Message: TypeAlias = Request | Notice
KINDS: Final = (
    *(Open, Check, SetParameters, Prime, Words, EndText, ClearText, HearPadding, Close, Sent),
    *(Hello, Admitted, Queued, Refused, Primed, Ended, Checked, HealthNow),
    *(Arm, Noted, Acknowledge, Detach, Resume, Resumed, Moving, Adopt),
)
NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}


def pack(message: Message) -> bytes:
    """A message as bytes: the number of its kind, then its fields."""
    data: bytes = msgpack.packb([NUMBERS[type(message)], *message])
    return data


def unpack(data: bytes) -> Message:
    """The reverse of :func:`pack`.

    Raises:
        ProtocolError: the bytes are no message.
    """
    try:
        number, *values = msgpack.unpackb(data)
        message: Message = KINDS[number](*values)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ProtocolError(f"{len(data)} bytes are no message of the seam: {error}") from error
    return message


def pack_error(error: AntiphonError) -> list[Any]:
    """An error as its class, its words and what else it carries."""
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return [kind.__name__, str(error), error.retry_after_s or 0]


def unpack_error(packed: list[Any]) -> AntiphonError:
    """The reverse of :func:`pack_error`: the same class, or SessionFailedError where that needs more."""
    name, words, retry_after_s = packed
    if name == ServerFullError.__name__:
        return ServerFullError(words, retry_after_s=retry_after_s)
    kind = getattr(errors, name, None)
    is_plain = isinstance(kind, type) and issubclass(kind, AntiphonError) and "__init__" not in vars(kind)
    return kind(words) if is_plain and kind is not None else SessionFailedError(words)


def pack_facts(info: BackendInfo) -> dict[str, Any]:
    """An engine's facts."""
    return asdict(info)


def unpack_facts(facts: dict[str, Any]) -> BackendInfo:
    """The reverse of :func:`pack_facts`."""
    spec = dict(facts["spec"])
    lm = spec["lm"] and LMSpec(**{**spec["lm"], "delays": tuple(spec["lm"]["delays"])})
    spec |= {"kind": PipelineKind(spec["kind"]), "mimi": MimiSpec(**spec["mimi"]), "lm": lm}
    return BackendInfo(**{**facts, "spec": ModelSpec(**spec)})


def pack_words(entries: list[TextEntry]) -> list[tuple[tuple[int, ...], str, int, bool]]:
    """Words as plain values."""
    return [(entry.tokens, entry.text, entry.padding_frames, entry.is_last) for entry in entries]


def unpack_words(packed: list[Any]) -> list[TextEntry]:
    """The reverse of :func:`pack_words`."""
    return [TextEntry(tuple(tokens), text, padding, is_last) for tokens, text, padding, is_last in packed]


def pack_prompt(prompt: Prompt) -> tuple[Parts, bytes]:
    """A prompt: what its arrays are, and their bytes."""
    arrays = (prompt.frames, prompt.voice, prompt.embedded, prompt.speakers, prompt.keys_values)
    parts = [None if array is None else [array.dtype.str, list(array.shape)] for array in arrays]
    return parts, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays if array is not None)


def unpack_prompt(parts: Parts, data: bytes) -> Prompt:
    """The reverse of :func:`pack_prompt`.

    Raises:
        ProtocolError: the bytes are not those of such arrays.
    """
    arrays: list[NDArray[Any] | None] = []
    offset = 0
    try:
        for part in parts:
            if part is None:
                arrays.append(None)
                continue
            wanted, kind, shape = FORMS[len(arrays)], np.dtype(part[0]), tuple(part[1])
            if (kind.str, len(shape)) != wanted or min(shape, default=0) < 0:
                raise ValueError(f"an array {kind.str} {list(shape)}, not {wanted[0]} of {wanted[1]} axes")
            count = math.prod(shape)
            arrays.append(np.frombuffer(data, kind, count, offset).reshape(shape))
            offset += count * kind.itemsize
        frames, *others = arrays
        if frames is None or len(others) + 1 != len(FORMS):
            raise ValueError("arrays are missing")
        if not all(array is None or np.isfinite(array).all() for array in others):
            raise ValueError("not all of it are numbers")
        return Prompt(frames, *others)
    except (ValueError, TypeError, IndexError) as error:
        raise ProtocolError(f"{len(data)} bytes are no prompt: {error}") from error

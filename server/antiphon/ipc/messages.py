"""The messages between a front end and the engines, each declared once.

In one process they are passed as objects; across processes :data:`REQUESTS` and :data:`NOTICES` are their
bytes. A ``call`` is a session's id, a ``model`` the number of an engine. A lease is counted from the pool's
first. A field out of its range ends the call that the message names; without a call, the front end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from antiphon import errors
from antiphon.arrays import FloatArray
from antiphon.backends.base import BackendInfo, TextEntry
from antiphon.errors import AntiphonError, ServerFullError, SessionFailedError
from antiphon.ipc.health import Health
from antiphon.ipc.message_socket import Codec, MessageBase, leaves
from antiphon.ipc.values import (
    Call,
    Count,
    CountOrNone,
    Kept,
    Key,
    Note,
    Owner,
    ResumeClaim,
    Resumption,
    Shape,
)
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters

Model: TypeAlias = Annotated[int, Meta(ge=0, le=255)]
Wait: TypeAlias = Annotated[float, Meta(ge=0, le=86_400)]
"""No caller waits for longer than a day."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=2**53)]
FlushFrames: TypeAlias = Annotated[int, Meta(ge=0, le=1024)]
"""Frames of silence at once: recognisers lag behind by less than a hundred."""


class Request(MessageBase, frozen=True):
    """From a front end."""


class CallRequest(Request, frozen=True):
    """From a front end, about one of its calls."""

    call: Call


class Open(CallRequest, frozen=True):
    """Begin a call: it gets a row, or waits for one for at most ``wait_s``."""

    model: Model
    parameters: SamplingParameters
    wait_s: Wait
    prompt: Prompt | None = None


class Resume(CallRequest, frozen=True):
    """Continue a call of another connection."""

    model: Model
    claim: ResumeClaim


class SetParameters(CallRequest, frozen=True):
    """Use other parameters from the next frame on: frames wait until change ``number`` is known."""

    number: Count
    parameters: SamplingParameters


class Prime(CallRequest, frozen=True):
    """Let the row read a prompt in place of the one given before; ``Primed`` with its number answers."""

    number: Count
    prompt: Prompt


class Restart(CallRequest, frozen=True):
    """Begin a new text in a fresh row, with this voice; ``Primed`` with its number answers."""

    number: Count
    prompt: Prompt | None


class PushText(CallRequest, frozen=True):
    """Add words to be spoken."""

    entries: tuple[TextEntry, ...]
    received_s: Seconds


class EndText(CallRequest, frozen=True):
    """The text ends here, unless its last word said so."""


class ClearText(CallRequest, frozen=True):
    """Throw away the words that wait."""


class HearPadding(CallRequest, frozen=True):
    """Hear ``frames`` of silence, ``upto`` in all, after the unfinished frame ``tail``.

    Void once the caller's ``padding_run`` is beyond ``run``.
    """

    run: Count
    upto: Count
    frames: FlushFrames
    tail: FloatArray
    now_s: Seconds


class Arm(CallRequest, frozen=True):
    """The call can be resumed with the token that hashes to ``key``, with the API key ``owner``."""

    key: Key
    owner: Owner


class Noted(CallRequest, frozen=True):
    """Numbered messages are about to be sent, and the text of replies to frames below ``told_frame``.

    ``kept`` is for the next connection of the call, in the protocol's own words.
    """

    notes: tuple[Note, ...]
    told_frame: Count
    kept: Kept = b""


class Acknowledge(CallRequest, frozen=True):
    """The client has got numbered messages up to this one."""

    seq: CountOrNone


class Detach(CallRequest, frozen=True):
    """The connection is gone: the row waits for another. The front end uses the lease no more."""


class Close(CallRequest, frozen=True):
    """Free the row, or the place in the queue; the front end uses the call, and its lease, no more."""


class Unreadable(CallRequest, frozen=True):
    """In place of a message about a call that could not be read, for the reason in ``words``."""

    words: str


class Check(Request, frozen=True):
    """Whether a caller would be admitted; ``Checked`` answers."""

    model: Model
    number: Count
    wait_s: Wait


class Adopt(Request, frozen=True):
    """Take a call of another worker; ``Checked`` answers. Its state is ``data``, or comes as a descriptor."""

    model: Model
    number: Count
    data: bytes | None = None


class Lag(Request, frozen=True):
    """The front end's event loop runs so late."""

    model: Model
    lag_s: Seconds


class Sent(Request, frozen=True):
    """Replies on their sockets; ``latency_s`` and ``first_audio_s`` are float32 ``[n]``."""

    model: Model
    sent_s: Seconds
    latency_s: FloatArray
    late: Count
    pressing: Count
    first_audio_s: FloatArray
    refused: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Notice(MessageBase, frozen=True):
    """From the engines."""


class CallNotice(Notice, frozen=True):
    """From the engines, about one call."""

    call: str


class EngineFacts(msgspec.Struct, frozen=True):
    """What a front end needs to know of one engine."""

    name: str
    info: BackendInfo
    shape: Shape
    pools: int
    leases: int
    text_entries: int
    call_bytes: int
    health: Health


class Hello(Notice, frozen=True):
    """The engines there are; with it come the bell, then each one's memory and wake-up."""

    pool: int
    engines: tuple[EngineFacts, ...]


class Admitted(CallNotice, frozen=True):
    """The call has a row, and this lease."""

    lease: int


class Queued(CallNotice, frozen=True):
    """The call waits behind ``position`` others."""

    position: int
    retry_after_s: int


class Refused(CallNotice, frozen=True):
    """The call was not taken."""

    error: AntiphonError


class Resumed(CallNotice, frozen=True):
    """The call continues one of another connection; ``Admitted`` follows."""

    resumption: Resumption


class Moving(CallNotice, frozen=True):
    """Another worker gets the call: ``Detach`` it, and wait."""


class Primed(CallNotice, frozen=True):
    """The row has read the prompt of this number: frame 0 is what is pushed from now on."""

    number: int


class Ended(CallNotice, frozen=True):
    """The call is over, without its front end's request."""

    error: AntiphonError


class Checked(Notice, frozen=True):
    """The answer to the request of this number: None, or why not."""

    number: int
    error: AntiphonError | None


class HealthNow(Notice, frozen=True):
    """How an engine is."""

    model: int
    health: Health


def _pack(value: Any) -> Any:
    """Values that msgspec does not know, as ones that it does."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
        case AntiphonError():
            kind = next(kind for kind in type(value).__mro__ if kind.__module__ == errors.__name__)
            return kind.__name__, str(value), value.retry_after_s or 0
        case Mapping():
            return dict(value)
    raise NotImplementedError(f"{type(value)} is no type of a message")


def _unpack(kind: Any, value: Any) -> Any:
    """The reverse of :func:`_pack` for a declared type; msgspec makes its errors those of the field."""
    if kind is AntiphonError:
        return _unpack_error(*value)
    name, shape, data = value
    wanted = np.dtype(kind.__args__[1].__args__[0])
    if name != wanted.str or min(shape, default=0) < 0:
        raise ValueError(f"an array of type {name!r:.20} and shape {shape!r:.40}, expected {wanted.str}")
    return np.frombuffer(data, wanted).reshape(shape)


def _unpack_error(name: str, words: str, retry_after_s: int) -> AntiphonError:
    """An error of the same class, or SessionFailedError where that class needs more."""
    if name == ServerFullError.__name__:
        return ServerFullError(words, retry_after_s=retry_after_s)
    kind = getattr(errors, name, None)
    is_plain = isinstance(kind, type) and issubclass(kind, AntiphonError) and "__init__" not in vars(kind)
    return kind(words) if is_plain and kind is not None else SessionFailedError(words)


REQUESTS: Final = Codec[Request](leaves(Request), enc_hook=_pack, dec_hook=_unpack, unreadable=Unreadable)
NOTICES: Final = Codec[Notice](leaves(Notice), enc_hook=_pack, dec_hook=_unpack)

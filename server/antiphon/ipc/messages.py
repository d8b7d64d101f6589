"""The messages between a front end and the engines, each declared once.

Within one process they are passed as objects; across processes :data:`REQUESTS` and :data:`NOTICES` encode
them. ``call`` is the id of a session, ``model`` the number of an engine, and a lease is its index in the
pool. A field that is out of range ends the call of its message, or the front end's connection if the message
has no call.
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
"""The longest wait of a caller, in seconds: a day."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=2**53)]
FlushFrames: TypeAlias = Annotated[int, Meta(ge=0, le=1024)]
"""Maximum number of frames of silence in one request: recognisers have a delay of less than a hundred frames.
"""


class Request(MessageBase, frozen=True):
    """A message from a front end."""


class CallRequest(Request, frozen=True):
    """A message from a front end about one of its calls."""

    call: Call


class Open(CallRequest, frozen=True):
    """Begin a call: it gets a row, or waits for one for at most ``wait_s``."""

    model: Model
    parameters: SamplingParameters
    wait_s: Wait
    prompt: Prompt | None = None


class Resume(CallRequest, frozen=True):
    """Continue a call whose former connection has ended."""

    model: Model
    claim: ResumeClaim


class SetParameters(CallRequest, frozen=True):
    """Use other parameters from the next frame on; frames wait until the engine has applied change
    ``number``."""

    number: Count
    parameters: SamplingParameters


class Prime(CallRequest, frozen=True):
    """Read a prompt in place of the previous one; the answer is ``Primed`` with its number."""

    number: Count
    prompt: Prompt


class Restart(CallRequest, frozen=True):
    """Begin a new text in a fresh row, with this voice; the answer is ``Primed`` with its number."""

    number: Count
    prompt: Prompt | None


class PushText(CallRequest, frozen=True):
    """Add words to be synthesised."""

    entries: tuple[TextEntry, ...]
    received_s: Seconds


class EndText(CallRequest, frozen=True):
    """End the text, unless its last word has ended it."""


class ClearText(CallRequest, frozen=True):
    """Discard the words that the row has not taken."""


class FeedPadding(CallRequest, frozen=True):
    """Add ``frames`` frames of silence after the unfinished frame ``tail``; ``upto`` is the total number
    requested so far.

    It has no effect once the caller's ``padding_run`` is greater than ``run``.
    """

    run: Count
    upto: Count
    frames: FlushFrames
    tail: FloatArray
    now_s: Seconds


class Arm(CallRequest, frozen=True):
    """Let the call be resumed with the token that hashes to ``key``, by the API key ``owner``."""

    key: Key
    owner: Owner


class Noted(CallRequest, frozen=True):
    """Store numbered messages before they are sent, with the text of replies to frames below ``text_frame``.

    ``kept`` is for the next connection of the call, in the protocol's own format.
    """

    notes: tuple[Note, ...]
    text_frame: Count
    kept: Kept = b""


class Acknowledge(CallRequest, frozen=True):
    """The client has received the numbered messages up to this one."""

    seq: CountOrNone


class Detach(CallRequest, frozen=True):
    """Detach the call, whose connection has ended: the row waits for another connection. The front end no
    longer uses the lease.
    """


class Close(CallRequest, frozen=True):
    """Free the row, or the place in the queue; the front end no longer uses the call and its lease."""


class Unreadable(CallRequest, frozen=True):
    """Replaces an unreadable message about a call; ``words`` are the reason."""

    words: str


class Check(Request, frozen=True):
    """Ask whether a caller would be admitted; the answer is ``Checked``."""

    model: Model
    number: Count
    wait_s: Wait


class Adopt(Request, frozen=True):
    """Accept a call from another worker; the answer is ``Checked``. Its state is in ``data`` or in a
    descriptor.
    """

    model: Model
    number: Count
    data: bytes | None = None


class Lag(Request, frozen=True):
    """The lag of the front end's event loop."""

    model: Model
    lag_s: Seconds


class Sent(Request, frozen=True):
    """Replies were written to sockets; ``latency_s`` and ``first_audio_s`` are float32 ``[n]``."""

    model: Model
    sent_s: Seconds
    latency_s: FloatArray
    late: Count
    pressing: Count
    first_audio_s: FloatArray
    refused: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Notice(MessageBase, frozen=True):
    """A message from the engines."""


class CallNotice(Notice, frozen=True):
    """A message from the engines about one call."""

    call: str


class EngineFacts(msgspec.Struct, frozen=True):
    """One engine, described for a front end."""

    name: str
    info: BackendInfo
    shape: Shape
    pools: int
    leases: int
    text_entries: int
    call_bytes: int
    health: Health


class Hello(Notice, frozen=True):
    """The engines of the server, the first message to a front end. Descriptors follow: the front end's
    wake-up, then each engine's memory and wake-up.
    """

    pool: int
    engines: tuple[EngineFacts, ...]


class Admitted(CallNotice, frozen=True):
    """The call has a row, and this lease."""

    lease: int


class Queued(CallNotice, frozen=True):
    """The call waits in the queue behind ``position`` other calls."""

    position: int
    retry_after_s: int


class Refused(CallNotice, frozen=True):
    """The call gets no row; ``error`` is the reason."""

    error: AntiphonError


class Resumed(CallNotice, frozen=True):
    """The call continues on this connection; ``Admitted`` follows."""

    resumption: Resumption


class Moving(CallNotice, frozen=True):
    """Another worker takes the call: ``Detach`` it, and wait."""


class Primed(CallNotice, frozen=True):
    """The row has read the prompt of this number: the next frame pushed is frame 0."""

    number: int


class Ended(CallNotice, frozen=True):
    """The call has ended without a request of its front end."""

    error: AntiphonError


class Checked(Notice, frozen=True):
    """The answer to the request with this number: an error, or None."""

    number: int
    error: AntiphonError | None


class HealthNow(Notice, frozen=True):
    """The health of an engine."""

    model: int
    health: Health


def _pack(value: Any) -> Any:
    """Encode values that msgspec does not know as ones that it does."""
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
    """Decode :func:`_pack` for a declared type; msgspec reports errors with the field's name."""
    if kind is AntiphonError:
        return _unpack_error(*value)
    name, shape, data = value
    wanted = np.dtype(kind.__args__[1].__args__[0])
    if name != wanted.str or min(shape, default=0) < 0:
        raise ValueError(f"an array of type {name!r:.20} and shape {shape!r:.40}, expected {wanted.str}")
    return np.frombuffer(data, wanted).reshape(shape)


def _unpack_error(name: str, words: str, retry_after_s: int) -> AntiphonError:
    """An error of the same class, or SessionFailedError where that class has more arguments."""
    if name == ServerFullError.__name__:
        return ServerFullError(words, retry_after_s=retry_after_s)
    kind = getattr(errors, name, None)
    is_plain = isinstance(kind, type) and issubclass(kind, AntiphonError) and "__init__" not in vars(kind)
    return kind(words) if is_plain and kind is not None else SessionFailedError(words)


REQUESTS: Final = Codec[Request](leaves(Request), enc_hook=_pack, dec_hook=_unpack, unreadable=Unreadable)
NOTICES: Final = Codec[Notice](leaves(Notice), enc_hook=_pack, dec_hook=_unpack)

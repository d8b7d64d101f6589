"""Messages between the supervisor and its children over control sockets, as values and as bytes.

A question and its answer carry the same number, a statement carries 0. Descriptors travel beside a message:
with ``Begin`` the front end's link to the engine, with ``NewFrontEnd`` the engine's end of it, and with
``Connection`` an accepted connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgpack

from antiphon.errors import ProtocolError


class Message:
    """Any of what follows."""


@dataclass(frozen=True)
class Begin(Message):
    """To a child, first of all: its number, and what it is to do, in bytes that its own main understands."""

    number: int
    task: bytes


@dataclass(frozen=True)
class Ready(Message):
    """From a child: it can do its work; ``lines`` describe it to people."""

    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed(Message):
    """From a child: it cannot begin, for the reason in ``words``."""

    words: str


@dataclass(frozen=True)
class Ping(Message):
    """To a child: is its event loop running?"""


@dataclass(frozen=True)
class Pong(Message):
    """From a child: how late its event loop was lately, at most."""

    lag_s: float = 0.0


@dataclass(frozen=True)
class Connection(Message):
    """To a front end: an accepted connection of this number."""

    number: int


@dataclass(frozen=True)
class Load(Message):
    """From a front end: connections it received so far, those at work now, and which have closed since."""

    received: int
    busy: int
    closed: tuple[int, ...] = ()


@dataclass(frozen=True)
class NewFrontEnd(Message):
    """To the engine: a front end, of this process, will speak on the link that comes along."""

    number: int
    pid: int


@dataclass(frozen=True)
class GoneFrontEnd(Message):
    """To the engine: this front end's process has been reaped, so what it held is free."""

    number: int


@dataclass(frozen=True)
class Lag(Message):
    """To the engine: the event loop of a front end runs so late."""

    number: int
    lag_s: float


@dataclass(frozen=True)
class Stuck(Message):
    """From the engine: the front end of this process takes no messages from it, so its calls have ended."""

    pid: int


@dataclass(frozen=True)
class Drain(Message):
    """To every child: take no new calls; those there are may go on for ``limit_s``.

    Those that can go to the worker at ``target`` do.
    """

    limit_s: float
    target: str = ""


@dataclass(frozen=True)
class BeginDrain(Message):
    """From a front end: an operator wants all to drain, and calls to go to the worker at ``target``."""

    target: str


@dataclass(frozen=True)
class Reread(Message):
    """To a front end: read the files of keys and certificates again."""


@dataclass(frozen=True)
class Cut(Message):
    """To a front end: end the calls now."""


@dataclass(frozen=True)
class Drained(Message):
    """From a front end: no call is left."""


@dataclass(frozen=True)
class Leave(Message):
    """To a child: end."""


@dataclass(frozen=True)
class Lost(Message):
    """From the engine: a device is lost, for the reason in ``words``."""

    words: str


@dataclass(frozen=True)
class Traced(Message):
    """From the engine: as many ticks are recorded as were asked for."""


@dataclass(frozen=True)
class Question(Message):
    """Either way: ``what`` is "metrics", "health", "canary" or "trace"; the answer is a ``Body``."""

    what: str


@dataclass(frozen=True)
class Body(Message):
    """The answer to a ``Question``."""

    data: bytes


@dataclass(frozen=True)
class Take(Message):
    """From a front end: one more session of a key and an address, as its lease ``lease``; 0 is no limit.

    ``kind`` says what is counted, in the plural; each kind is counted by itself.
    """

    lease: int
    key: str
    key_limit: int
    address: str
    address_limit: int
    kind: str = "sessions"


@dataclass(frozen=True)
class Taken(Message):
    """The answer to ``Take``: "" when it is granted, else the reason."""

    refusal: str


@dataclass(frozen=True)
class GiveBack(Message):
    """From a front end: its lease ``lease`` is over."""

    lease: int


@dataclass(frozen=True)
class Use(Message):
    """From a front end: the seconds that its calls with each key have had on a day, by key."""

    day: str
    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Used(Message):
    """The answer to ``Use``: the seconds of calls with these keys in all front ends."""

    seconds: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Compared(Message):
    """From a front end: a call of a version on trial has ended, and how it went (``CallSignals.values``)."""

    arm: str
    caller: str
    signals: tuple[float | None, ...]


@dataclass(frozen=True)
class AskPhase(Message):
    """From a front end: an operator wants a phase of the trial; the answer is a ``Body`` with its state."""

    phase: str


@dataclass(frozen=True)
class CanaryPhase(Message):
    """To a front end: the phase of the trial."""

    phase: str


_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in Message.__subclasses__()}


def pack(number: int, message: Message) -> bytes:
    """The bytes of a message: of a question, of the answer to it, or (0) of a statement."""
    values = vars(message).values()
    packed: bytes = msgpack.packb([number, type(message).__name__, *values])
    return packed


def unpack(data: bytes) -> tuple[int, Message]:
    """The number and the message of bytes.

    Raises:
        ProtocolError: they are no message of this version.
    """
    try:
        number, kind, *values = msgpack.unpackb(data, use_list=False)
        return number, _KINDS[kind](*values)
    except (ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"{len(data)} bytes on a control socket are no message: {error!r}") from error

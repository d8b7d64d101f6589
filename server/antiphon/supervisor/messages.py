"""Messages between the supervisor and its children over control sockets.

Descriptors travel with a message: with ``Begin`` the front end's links to the engines, with ``NewFrontEnd``
an engine's end of one, and with ``Connection`` an accepted connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeAlias

import msgspec

from antiphon.canary.signals import TrialArm
from antiphon.canary.trial import Phase
from antiphon.ipc.message_socket import Codec, LocalSocket, MessageBase, MessageSocket, Reply, leaves

Fault: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None
"""One of ``CallSignals``."""


class Message(MessageBase, frozen=True):
    """Any of the following."""


class Begin(Message, frozen=True):
    """To a child, first of all: its number, and what it is to do, in bytes that its own main understands.

    A front end gets the fingerprints of the ``models`` that the engines run, by name.
    """

    number: int
    task: bytes
    models: tuple[tuple[str, str], ...] = ()


class Ready(Message, frozen=True):
    """From a child: it can do its work; ``lines`` describe it to people, ``models`` are as in ``Begin``."""

    lines: tuple[str, ...] = ()
    models: tuple[tuple[str, str], ...] = ()


class Failed(Message, frozen=True):
    """From a child: it cannot begin, for the reason in ``words``."""

    words: str


class Ping(Message, frozen=True):
    """To a child: is its event loop running?"""


class Pong(Message, frozen=True):
    """From a child: how late its event loop was lately, at most."""

    lag_s: float = 0.0


class Connection(Message, frozen=True):
    """To a front end: an accepted connection of this number."""

    number: int


class MakeRoom(Message, frozen=True):
    """To a front end: close up to ``count`` connections that have sent no whole request in their time."""

    count: int


class Load(Message, frozen=True):
    """From a front end: connections it received so far, those at work now, and which have closed since."""

    received: int
    busy: int
    closed: tuple[int, ...] = ()


class NewFrontEnd(Message, frozen=True):
    """To the engine: a front end, of this process, will speak on the link that comes along."""

    number: int
    pid: int


class GoneFrontEnd(Message, frozen=True):
    """To the engine: this front end's process has been reaped, so what it held is free."""

    number: int


class Stuck(Message, frozen=True):
    """From the engine: the front end of this process takes no messages from it, so its calls have ended."""

    pid: int


class Drain(Message, frozen=True):
    """To every child: take no new calls; running ones may continue for ``limit_s``.

    Those that can go to the worker at ``target`` do.
    """

    limit_s: float
    target: str = ""


class BeginDrain(Message, frozen=True):
    """From a front end: an operator drains the server, and moves calls to the worker at ``target``.

    With the device of an ``engine`` only that one, whose calls may go to others of this worker.
    """

    target: str
    engine: str = ""


class Reread(Message, frozen=True):
    """To a front end: read the files of keys and certificates again."""


class Cut(Message, frozen=True):
    """To a front end: end the calls now."""


class Drained(Message, frozen=True):
    """From a front end: no call is left."""


class Leave(Message, frozen=True):
    """To a child: end."""


class Lost(Message, frozen=True):
    """From the engine: a device is lost, for the reason in ``words``."""

    words: str


class Traced(Message, frozen=True):
    """From the engine: as many ticks are recorded as were requested."""


class Question(Message, frozen=True):
    """Either way: ``what`` is "metrics", "health", "canary" or "trace"; the answer is a ``Body``."""

    what: str


class Body(Message, frozen=True):
    """The answer to a ``Question``."""

    data: bytes


class Take(Message, frozen=True):
    """From a front end: one more session of a key and an address, as its lease ``lease``; 0 is no limit.

    ``kind`` says what is counted, in the plural; each kind is counted separately.
    """

    lease: int
    key: str
    key_limit: int
    address: str
    address_limit: int
    kind: str = "sessions"


class SignedRequest(Message, frozen=True):
    """From a front end: the request of a worker with this header is to be carried out, once on the server."""

    header: str


class Taken(Message, frozen=True):
    """The answer to ``Take`` and ``SignedRequest``: "" when it is granted, else the reason."""

    refusal: str


class GiveBack(Message, frozen=True):
    """From a front end: its lease ``lease`` is over."""

    lease: int


class Use(Message, frozen=True):
    """From a front end: the seconds that its calls with each key have had on a day, by key."""

    day: str
    seconds: tuple[tuple[str, float], ...]


class Used(Message, frozen=True):
    """The answer to ``Use``: the seconds of calls with these keys in all front ends."""

    seconds: tuple[tuple[str, float], ...]


class Compared(Message, frozen=True):
    """From a front end: a call of a version on trial has ended, and how it went (``CallSignals.values``)."""

    arm: TrialArm
    caller: str
    signals: Annotated[tuple[Fault, ...], msgspec.Meta(min_length=6, max_length=6)]


class AskPhase(Message, frozen=True):
    """From a front end: an operator wants a phase of the trial; the answer is a ``Body`` with its state."""

    phase: Phase


class CanaryPhase(Message, frozen=True):
    """To a front end: the phase of the trial."""

    phase: Phase


CONTROL: Final = Codec(leaves(Message))
"""The messages above as bytes."""
ControlSocket: TypeAlias = MessageSocket[Message] | LocalSocket[Message]
Connect: TypeAlias = Callable[..., ControlSocket]
"""Makes one end of a control socket for what handles its messages, and for ``lost``."""
ControlReply: TypeAlias = Reply[Message]

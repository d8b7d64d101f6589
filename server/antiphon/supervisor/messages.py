"""Messages between the supervisor and its children over control sockets.

Descriptors are sent with a message: with ``Begin`` the front end's links to the engines, with ``NewFrontEnd``
an engine's end of such a link, with ``Connection`` an accepted connection, and with ``Link`` one end of a
socket.
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
    """The base of all messages."""


class Begin(Message, frozen=True):
    """The first message to a child: its number, and its task as bytes, which the child's main function
    decodes.

    A front end gets the fingerprints of the ``models`` that the engines run, by name.
    """

    number: int
    task: bytes
    models: tuple[tuple[str, str], ...] = ()


class Ready(Message, frozen=True):
    """From a child: it is ready; ``lines`` describe it to users, ``models`` are as in ``Begin``."""

    lines: tuple[str, ...] = ()
    models: tuple[tuple[str, str], ...] = ()


class Failed(Message, frozen=True):
    """From a child: it cannot start; ``words`` is the reason."""

    words: str


class Ping(Message, frozen=True):
    """To a child: a heartbeat request."""


class Pong(Message, frozen=True):
    """From a child: the largest recent delay of its event loop, and for an engine whether a step is stuck."""

    lag_s: float = 0.0
    is_stuck: bool = False


class Connection(Message, frozen=True):
    """To a front end: an accepted connection with this number."""

    number: int


class Link(Message, frozen=True):
    """From one front end, and passed on to the front end with the number ``front_end``: a link for a
    connection of the client at ``address``.
    """

    front_end: int
    address: str


class MakeRoom(Message, frozen=True):
    """To a front end: close up to ``count`` connections that have sent no whole request in time."""

    count: int


class Load(Message, frozen=True):
    """From a front end: the number of connections received so far, the number of active connections, and the
    connections closed since the last report.
    """

    received: int
    busy: int
    closed: tuple[int, ...] = ()


class NewFrontEnd(Message, frozen=True):
    """To the engine: the front end with this number, in the process ``pid``, will use the attached link."""

    number: int
    pid: int


class GoneFrontEnd(Message, frozen=True):
    """To the engine: this front end's process was reaped, so its resources are free."""

    number: int


class Stuck(Message, frozen=True):
    """From the engine: the front end in the process ``pid`` reads no messages, so its calls have ended."""

    pid: int


class Drain(Message, frozen=True):
    """To every child: accept no new calls; running ones may continue for ``limit_s``.

    Calls that can move go to the worker at ``target``.
    """

    limit_s: float
    target: str = ""


class BeginDrain(Message, frozen=True):
    """From a front end: an operator drains the server, and moves calls to the worker at ``target``.

    If ``engine`` names a device, only the engine on it drains, and its calls may move to other engines of
    this worker.
    """

    target: str
    engine: str = ""


class Reread(Message, frozen=True):
    """To a front end: reload the files of keys and certificates."""


class Cut(Message, frozen=True):
    """To a front end that drains: end the calls before the limit, because of a second signal."""


class Drained(Message, frozen=True):
    """From a front end: there are no calls left."""


class Leave(Message, frozen=True):
    """To a child: end your process."""


class Lost(Message, frozen=True):
    """From the engine: a device is lost; ``words`` is the reason."""

    words: str


class Traced(Message, frozen=True):
    """From the engine: the requested number of ticks is recorded."""


class Question(Message, frozen=True):
    """In both directions: ``what`` is "metrics", "health", "canary" or "trace"; the answer is a ``Body``."""

    what: str


class Body(Message, frozen=True):
    """The answer to a ``Question``."""

    data: bytes


class Take(Message, frozen=True):
    """From a front end: request one more session of a key and an address, as lease ``lease``.

    A limit of 0 means no limit. ``kind`` is the plural name of the counted things; each kind is counted
    separately.
    """

    lease: int
    key: str
    key_limit: int
    address: str
    address_limit: int
    kind: str = "sessions"


class SignedRequest(Message, frozen=True):
    """From a front end: a signed request of another worker or an operator, to be executed once per server."""

    header: str


class Taken(Message, frozen=True):
    """The answer to ``Take`` and ``SignedRequest``: "" if granted, else the reason."""

    refusal: str


class GiveBack(Message, frozen=True):
    """From a front end: its lease ``lease`` has ended."""

    lease: int


class Use(Message, frozen=True):
    """From a front end: the seconds of calls on a day, by key."""

    day: str
    seconds: tuple[tuple[str, float], ...]


class Used(Message, frozen=True):
    """The answer to ``Use``: the seconds of calls with these keys in all front ends."""

    seconds: tuple[tuple[str, float], ...]


class Compared(Message, frozen=True):
    """From a front end: a call of a version on trial has ended, with its signals (``CallSignals.values``)."""

    arm: TrialArm
    caller: str
    signals: Annotated[tuple[Fault, ...], msgspec.Meta(min_length=6, max_length=6)]


class AskPhase(Message, frozen=True):
    """From a front end: an operator sets the phase of the trial; the answer is a ``Body`` with the trial's
    state.
    """

    phase: Phase


class CanaryPhase(Message, frozen=True):
    """To a front end: the phase of the trial."""

    phase: Phase


CONTROL: Final = Codec(leaves(Message))
"""Encodes the messages above."""
ControlSocket: TypeAlias = MessageSocket[Message] | LocalSocket[Message]
Connect: TypeAlias = Callable[..., ControlSocket]
"""Creates one end of a control socket; its arguments are a handler for messages and the callback ``lost``."""
ControlReply: TypeAlias = Reply[Message]

"""The interface of a call to its client's connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeAlias, TypeVar

M = TypeVar("M")
T = TypeVar("T")

Message: TypeAlias = bytes | str
"""A message in either direction: binary, or text."""

MESSAGE_BYTES: Final = 256
"""Bytes of memory that a message takes in addition to its content, at most: many small messages count too."""

FIN_RECEIVED: Final = (4, 5, 7, 8, 9, 11)
"""The states of a connection, on Linux, whose peer sends nothing more: its FIN or RST has arrived."""

Taker: TypeAlias = Callable[[Message], Message | None]
"""Takes a message, and returns the part for the receiver; the receiver also gets its errors."""


class Transport(Protocol):
    """Carries messages in both directions, with a limit for every wait; used on the event loop only.

    ``seen_s`` is the time at which the peer last sent anything, ``close_code`` the code that closed the
    connection.
    """

    seen_s: float
    close_code: int | None

    @property
    def has_ended(self) -> bool:
        """Whether no further message can be received."""
        ...

    @property
    def was_cut(self) -> bool:
        """Whether the connection ended without a close, or with the announcement that the peer resumes."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether any bytes are unsent; a close may lose them."""
        ...

    async def receive_any(self) -> Message | None:
        """The next message; None once the connection is over."""
        ...

    def timed(self, work: Callable[[M], T], message: M) -> T:
        """The result of ``work`` for a message; its CPU time counts towards the peer's share."""
        ...

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        """Offer ``taker`` each message that arrives while a receiver waits, for the block."""
        ...

    async def wait_for(self, room: asyncio.Event) -> None:
        """Wait until ``room`` is set, or the peer has disconnected."""
        ...

    def send(self, messages: Sequence[Message]) -> None:
        """Write messages to the network at once; after the end of the connection they are discarded."""
        ...

    def is_congested(self) -> bool:
        """Whether the peer reads too slowly, or not at all."""
        ...

    def stalled_s(self, since_s: float) -> float:
        """Seconds by which the peer's slow reading delayed data that was ready at ``since_s``."""
        ...

    def silent_s(self) -> float:
        """Seconds since the peer last sent anything; 0 while reading is paused."""
        ...

    def ping(self) -> None:
        """Send a ping."""
        ...

    def cut(self) -> None:
        """End the connection at once, as a network failure does."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason, after everything written before."""
        ...


def kept_bytes(message: Message) -> int:
    """The largest number of bytes of memory that a waiting message takes."""
    return len(message) * (1 if isinstance(message, bytes) else 4) + MESSAGE_BYTES


def peer_has_ended(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed its side, even if its data was not yet read completely. Only Linux reports
    this.
    """
    connection = transport.get_extra_info("socket")
    if connection is None or not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in FIN_RECEIVED
    except OSError:  # closed meanwhile, or no TCP
        return False

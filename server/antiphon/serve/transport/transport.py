"""What a call needs of the connection to its client, whatever carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

M = TypeVar("M")
T = TypeVar("T")

Message: TypeAlias = bytes | str
"""What goes over a connection either way: binary, or text."""

Taker: TypeAlias = Callable[[Message], Message | None]
"""Takes a message and returns what is left of it for the receiver, who also gets what it raises."""


class Transport(Protocol):
    """Messages both ways, and every wait bounded; used on the event loop only.

    ``seen_s`` is the time of the last sign of life, ``close_code`` what the connection was closed with.
    """

    seen_s: float
    close_code: int | None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is received."""
        ...

    @property
    def was_cut(self) -> bool:
        """Whether the connection ended without a word from the peer, or with one that it comes back."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether anything is written and not yet taken by the network; a close may cut it off."""
        ...

    async def receive_any(self) -> Message | None:
        """The next message; None once the connection is over."""
        ...

    def timed(self, work: Callable[[M], T], message: M) -> T:
        """What ``work`` makes of a message; the processor time counts against the peer's share."""
        ...

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        """Meanwhile ``taker`` may be offered each message that comes while a receiver waits."""
        ...

    async def wait_for(self, room: asyncio.Event) -> None:
        """Wait until ``room`` is set, or the peer has left."""
        ...

    def send(self, messages: Sequence[Message]) -> None:
        """Hand messages to the network at once; after the connection is over they go nowhere."""
        ...

    def is_congested(self) -> bool:
        """Whether the peer reads too slowly, or not at all."""
        ...

    def stalled_s(self, since_s: float) -> float:
        """How long the peer's last congestion kept something waiting that was ready at ``since_s``."""
        ...

    def silent_s(self) -> float:
        """Seconds since the last sign of life; 0 while reading is paused."""
        ...

    def ping(self) -> None:
        """Request a sign of life."""
        ...

    def cut(self) -> None:
        """End the connection at once, as if the network had."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason, behind all that was written before."""
        ...

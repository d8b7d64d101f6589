"""A call's interface to the connection of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias, TypeVar

M = TypeVar("M")
T = TypeVar("T")

Message: TypeAlias = bytes | str
"""A message in either direction: binary, or text."""

Taker: TypeAlias = Callable[[Message], Message | None]
"""Takes a message and returns the rest for the receiver, who also gets its errors."""


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
        """Whether the connection ended without a close, or with the announcement that the peer resumes."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether any bytes are unsent; a close may cut them off."""
        ...

    async def receive_any(self) -> Message | None:
        """The next message; None once the connection is over."""
        ...

    def timed(self, work: Callable[[M], T], message: M) -> T:
        """The result of ``work`` for a message; its processor time counts against the peer's share."""
        ...

    def taking_at_once(self, taker: Taker) -> AbstractContextManager[None]:
        """For the block, ``taker`` may be offered each message that arrives while a receiver waits."""
        ...

    async def wait_for(self, room: asyncio.Event) -> None:
        """Wait until ``room`` is set, or the peer has disconnected."""
        ...

    def send(self, messages: Sequence[Message]) -> None:
        """Give messages to the network at once; after the connection is over they are discarded."""
        ...

    def is_congested(self) -> bool:
        """Whether the peer reads too slowly, or not at all."""
        ...

    def stalled_s(self, since_s: float) -> float:
        """How long the peer's last congestion delayed data that was ready at ``since_s``."""
        ...

    def silent_s(self) -> float:
        """Seconds since the last sign of life; 0 while reading is paused."""
        ...

    def ping(self) -> None:
        """Send a ping."""
        ...

    def cut(self) -> None:
        """End the connection at once, like a failure of the network."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason, after everything written before."""
        ...

"""How many recordings this process receives and transcribes at once, in all and for an address."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

from antiphon.errors import ServerFullError, SessionLimitError

MAX_UPLOADS: Final = 32
"""Recordings being received or transcribed at once: each may lie on disk in its largest size."""

RETRY_AFTER_S: Final = 10


class Uploads:
    """Counts them. Only the event loop asks it."""

    def __init__(self) -> None:
        """Begin without one."""
        self._count = 0
        self._by_address: Counter[str] = Counter()

    @contextlib.contextmanager
    def one(self, address: str, limit: int) -> Iterator[None]:
        """One more, for as long as this lasts; an ``address`` has ``limit``, 0 for any number.

        Raises:
            ServerFullError: there are as many as there may be.
            SessionLimitError: the address has as many as it may.
        """
        own = self._by_address[address]
        if 0 < limit <= own:
            raise SessionLimitError(f"your address {address} has {own} of {limit} recordings here")
        if self._count >= MAX_UPLOADS:
            raise ServerFullError(
                f"{MAX_UPLOADS} recordings are being transcribed; try again in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        self._count += 1
        self._by_address[address] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

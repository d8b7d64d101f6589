"""How many recordings this process receives and transcribes at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from antiphon.errors import ServerFullError

MAX_UPLOADS: Final = 32
"""Recordings being received or transcribed at once: each may lie on disk in its largest size."""

RETRY_AFTER_S: Final = 10


class Uploads:
    """Counts them. Only the event loop asks it."""

    def __init__(self) -> None:
        """Begin without one."""
        self._count = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One more, for as long as this lasts.

        Raises:
            ServerFullError: there are as many as there may be.
        """
        if self._count >= MAX_UPLOADS:
            raise ServerFullError(
                f"{MAX_UPLOADS} recordings are being transcribed; try again in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

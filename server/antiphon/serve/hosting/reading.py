"""A budget for reading callers' texts in one turn of the event loop, shared by all callers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from antiphon.models.script import PIECE_WORDS


class Reading:
    """Reads texts piece by piece: fewer than two pieces of ``PIECE_WORDS`` in one turn of the event loop.

    Callers that wait have their piece in the order they came.
    """

    def __init__(self) -> None:
        """Begin with nothing read."""
        self._lock = asyncio.Lock()
        self._words = 0

    async def step(self, pieces: Iterator[int]) -> bool:
        """Read one piece of a text, in a later turn if this one has read enough; false when none is left.

        ``pieces`` yields the number of words that it read.
        """
        async with self._lock:
            if self._words >= PIECE_WORDS:
                await asyncio.sleep(0)
                self._words = 0
            words = next(pieces, None)
            self._words += max(1, words or 0)  # an empty text takes time too
        return words is not None

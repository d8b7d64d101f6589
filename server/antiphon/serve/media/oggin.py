"""A caller's Ogg/Opus on a codec thread: pieces in, samples out, markers kept in their places.

Between the loop and the thread lie two bounded queues. What is decoded waits until the loop has passed it on;
beyond ``MAX_DECODED_SAMPLES`` the thread rests, and beyond ``MAX_WAITING`` pieces the loop stops reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from antiphon.audio.formats import AudioDecoder
from antiphon.audio.pcm import FloatArray
from antiphon.errors import AntiphonError, SessionFailedError
from antiphon.serve.hosting.lanes import WorkerPool

PIECE_BYTES: Final = 1024
"""A message is decoded in such pieces, so that no turn is long: packets of one byte can stand for 120 ms."""

MAX_WAITING: Final = 64
"""Pieces not yet decoded: a few seconds of speech."""

MAX_DECODED_SAMPLES: Final = 48_000
"""Two seconds that the loop has not passed on."""


class OggInput:
    """The Opus side of one session. ``announce`` is called when the loop has something to collect.

    ``error`` ends the session.
    """

    def __init__(self, pool: WorkerPool, announce: Callable[[], None]) -> None:
        """Make a decoder and take a place at a codec thread."""
        self.error: AntiphonError | None = None
        self._announce = announce
        self._decoder = AudioDecoder("ogg")
        self._waiting: deque[bytes | FloatArray | int] = deque()
        self._decoded: deque[FloatArray | int] = deque()
        self._samples = 0
        self._is_closed = False
        self._lane = pool.thread_lane(self._turn, self._fail)

    @property
    def is_full(self) -> bool:
        """Whether the loop should stop reading the socket."""
        return len(self._waiting) >= MAX_WAITING

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits on either side."""
        return not self._waiting and not self._decoded

    def put(self, item: bytes | FloatArray | int) -> None:
        """Add a piece of the stream, or samples or a marker that come after it."""
        if isinstance(item, bytes):
            pieces = (item[start : start + PIECE_BYTES] for start in range(0, len(item), PIECE_BYTES))
            self._waiting.extend(pieces)
        else:
            self._waiting.append(item)
        self._lane.wake()

    def collect(self) -> list[FloatArray | int]:
        """What is decoded, in order."""
        items: list[FloatArray | int] = []
        while self._decoded:
            items.append(self._decoded.popleft())
        self._samples = 0
        if self._waiting:
            self._lane.wake()
        return items

    def close(self) -> None:
        """Do no more work; the lane's last turn releases the decoder."""
        if not self._is_closed:
            self._is_closed = True
            self._lane.close()

    def _turn(self) -> bool:
        """Decode one piece, on the thread; true when there are more and room for them."""
        if self._is_closed:
            self._decoder.close()
            return False
        if self.error is not None or not self._waiting or self._samples > MAX_DECODED_SAMPLES:
            return False
        item = self._waiting.popleft()
        if isinstance(item, bytes):
            item = np.clip(self._decoder.feed(item), -1.0, 1.0)
        self._decoded.append(item)
        self._samples += 0 if isinstance(item, int) else item.size
        self._announce()
        return bool(self._waiting)

    def _fail(self, error: Exception) -> None:
        """Keep the error that ends the session: the peer's fault when we have a word for it, else ours."""
        if not isinstance(error, AntiphonError):
            error = SessionFailedError(f"the server could not decode: {type(error).__name__}: {error}")
        self.error = error
        self._announce()

"""A fake sound card and a printer for the unmodified ``moshi.client``."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from antiphon.backends.base import FloatArray

PERIOD_S = 0.02
"""A quarter of real time, to keep the test short: the client has no clock but its sound card's."""


class FakeStream:
    """Calls back with a block of samples each period, on a thread of its own, as PortAudio does."""

    def __init__(self, *, blocksize: int, channels: int, callback: Callable[..., None], **_: object) -> None:
        self._shape = (blocksize, channels)
        self._callback = callback
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.blocks: list[FloatArray] = []
        self.opened.append(self)

    opened: list[FakeStream]

    def __enter__(self) -> FakeStream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def block(self, index: int) -> FloatArray:
        return np.zeros(self._shape, np.float32)

    def _run(self) -> None:
        for index in range(10_000):
            block = self.block(index)
            self._callback(block, self._shape[0], None, None)
            self.blocks.append(block)
            if self._stop.wait(PERIOD_S):
                return


class Microphone(FakeStream):
    opened: list[FakeStream] = []  # noqa: RUF012 (reset by the fixture)

    def block(self, index: int) -> FloatArray:
        seconds = (index * self._shape[0] + np.arange(self._shape[0])) / 24000
        tone = (0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
        return tone[:, None]


class Speaker(FakeStream):
    opened: list[FakeStream] = []  # noqa: RUF012


class Printer:
    """Collects what the client would print."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, str]] = []
        self.tokens: list[str] = []

    def log(self, level: str, message: str) -> None:
        self.logged.append((level, message))

    def print_token(self, token: str) -> None:
        self.tokens.append(token)

    def print_header(self) -> None: ...

    def print_pending(self) -> None: ...

    def print_lag(self) -> None: ...

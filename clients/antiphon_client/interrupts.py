"""Ctrl-C in two steps: the first requests a regular end, the second is a KeyboardInterrupt."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_interrupt(callback: Callable[[], None]) -> Iterator[None]:
    """Within the block, the first Ctrl-C runs ``callback`` as a signal handler, in the main thread."""

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        callback()

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in this process and in every process started within the block."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)

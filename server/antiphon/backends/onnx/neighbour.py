"""What sockets take of a machine, for measurements at the start, when no caller is there yet."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from antiphon.cores import usable_cores

BURST_BYTES: Final = 1 << 20
"""Bytes that one burst of work reads: a fraction of a millisecond, as a message of a call takes."""
PAUSE: Final = 3.0
"""The pause after a burst, in times of its CPU time: the thread takes a quarter of a core."""


@contextmanager
def neighbour(threads: int) -> Iterator[bool]:
    """Beside a thread that takes a quarter of a core, where ``threads`` leave none; whether it is there.

    Where a core is left, sockets have that one, and nothing is to be simulated.
    """
    if threads < max(2, usable_cores()):
        yield False
        return
    is_over, data = threading.Event(), bytes(BURST_BYTES)

    def disturb() -> None:
        pause_s = 0.0
        while not is_over.wait(pause_s):
            begin_s = time.thread_time()
            zlib.crc32(data)  # without the interpreter's lock
            pause_s = PAUSE * (time.thread_time() - begin_s)

    thread = threading.Thread(target=disturb, name="antiphon-neighbour", daemon=True)
    thread.start()
    try:
        yield True
    finally:
        is_over.set()
        thread.join()

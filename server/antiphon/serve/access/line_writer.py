"""Appends and reads lines of a file on a separate thread, so that a hanging disk does not block the event
loop."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_LINES: Final = 1024
"""Maximum number of lines that wait for the disk: several minutes of calls, a quarter of a megabyte."""


class LineWriter:
    """Appends to one file, line by line, in order."""

    def __init__(self, path: Path) -> None:
        """Start without a thread; the first line starts it."""
        self._path = path
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue(MAX_LINES)
        self._thread: threading.Thread | None = None

    def write(self, line: bytes) -> Future[None]:
        """Append a line; the future is done once the line is in the file, or fails with an OSError."""
        return self.after_lines(lambda: append(self._path, line))

    def after_lines(self, work: Callable[[], T]) -> Future[T]:
        """Run a function on the file after all lines that were written before; the future has its result, or
        an OSError.
        """
        done: Future[T] = Future()
        try:
            self._work.put_nowait((work, done))
        except queue.Full:
            done.set_exception(OSError(errno.EAGAIN, f"{MAX_LINES} lines wait for the disk"))
            return done
        if self._thread is None:
            # A daemon thread: the process can exit while the disk hangs.
            self._thread = threading.Thread(target=self._run, name="antiphon-lines", daemon=True)
            self._thread.start()
        return done

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                found = work()
            except Exception as error:  # a boundary: the next line is written
                done.set_exception(error)
            else:
                done.set_result(found)


def append(path: Path, line: bytes) -> None:
    """Append a line in one write; it begins on a new line even after a failed write.

    Raises:
        OSError: the line was not written completely.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)

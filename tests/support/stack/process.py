"""A started program with its output in a file, and three ways to end it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SYSTEM_PATHS = ("/usr/sbin", "/usr/local/sbin")
"""Where Debian puts servers; not on every user's path."""

POLL_S = 0.02


def find_program(name: str, *more: Path) -> str:
    """The full path of a program.

    Raises:
        FileNotFoundError: it is not installed; the message says how it gets there.
    """
    path = os.pathsep.join([*map(str, more), os.environ.get("PATH", os.defpath), *SYSTEM_PATHS])
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"no program {name!r}; on Debian: apt-get install {name}")
    return found


async def until(is_so: Callable[[], bool], timeout_s: float) -> None:
    """Wait until something holds that happens in another process.

    Raises:
        TimeoutError: it did not.
    """
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 (nobody in this process could set an event)
            await asyncio.sleep(POLL_S)


class Process:
    """A running program; whoever starts it ends it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start ``argv`` with ``environment`` on top of ours; what it says goes to ``log``, appended."""
        self.argv = list(argv)
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                self.argv,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing when it has ended."""
        self._popen.send_signal(number)

    async def ended(self, timeout_s: float) -> int:
        """Wait for its end and return its exit code.

        Raises:
            TimeoutError: it still runs.
        """
        await until(lambda: self.exit_code is not None, timeout_s)
        return self._popen.wait()

    def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait()

    def text(self) -> str:
        """All it has said."""
        return self.log.read_text(errors="replace")

"""Usage: one record for each ended call, and the seconds of each key on a day.

Records are lines of JSON. Several processes append to one file, each line in one write, and each reads what
the others have written, so that a day's seconds are those of all of them, and outlast a restart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.serve.access.line_writer import LineWriter

READ_BYTES: Final = 1_048_576
"""Of the file, read at once when it is looked at: 5,000 records."""

SECONDS_A_DAY: Final = 86_400

DISK_S: Final = 0.25
"""How long a record is waited for, so that the next look at the file finds it. A disk that hangs is waited
for once; meanwhile its records wait and count, and the file is not read."""

CLOSE_S: Final = 2.0
"""How long records that wait are waited for at the end of the process."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One call: who had it, what of, and how much. ``key`` is a name, "" where no keys are asked for."""

    ended: str
    session: str
    key: str
    model: str
    seconds_in: float
    seconds_out: float
    words: int

    @property
    def seconds(self) -> float:
        """What counts towards a day's limit: the longer of the two directions."""
        return max(self.seconds_in, self.seconds_out)


class UsageLog:
    """The records of all calls. ``clock`` is the time of day, seconds since 1970; days are those of UTC."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, log: Log | None = None
    ) -> None:
        """Read today's records of a file that is there; without a file, days begin when the server does.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        self._path = path
        self._clock = clock
        self._log = log or Log(__name__)
        self._read_bytes = 0
        self._day = self.day
        self._by_key: dict[str, float] = {}
        self._writer = None if path is None else LineWriter(path)
        self._waiting: list[tuple[Future[None], UsageRecord]] = []
        self._unread: dict[str, float] = {}
        if path is not None:
            try:
                path.touch()
                self._read()
            except OSError as error:
                raise ConfigError(f"usage cannot be kept in {path}: {error.strerror}") from error

    @property
    def day(self) -> str:
        """Today, as records have it."""
        return self.stamp()[:10]

    def stamp(self) -> str:
        """Now, as records have it."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))

    def seconds_left(self) -> int:
        """Seconds until the next day begins."""
        return SECONDS_A_DAY - int(self._clock()) % SECONDS_A_DAY

    def write(self, record: UsageRecord) -> None:
        """Keep the record of a call that has ended; it counts even when the file fails, which is logged."""
        self._log.info("usage", **asdict(record))
        if self._writer is None:
            self._count(record)
            return
        written = self._writer.write(json.dumps(asdict(record)).encode() + b"\n")
        if not self._waiting:
            wait((written,), DISK_S)
        self._waiting.append((written, record))
        self._settle()

    def close(self) -> None:
        """Wait once more for a disk that hangs; records that it does not take are logged as not kept."""
        wait([written for written, _ in self._waiting], CLOSE_S)
        self._settle()
        for _ in self._waiting:
            self._log.error("usage not kept", file=self._path, reason=f"the disk hangs for {CLOSE_S:g} s")

    def _settle(self) -> bool:
        """Count what the file did not take; whether nothing waits for the disk."""
        waiting, self._waiting = self._waiting, []
        for written, record in waiting:
            if not written.done():
                self._waiting.append((written, record))
                continue
            error = written.exception()
            if isinstance(error, OSError):
                self._log.error("usage not kept", file=self._path, reason=error.strerror)
                self._count(record)
            else:
                self._add(self._unread, record)
        return not self._waiting

    @property
    def seconds_here(self) -> dict[str, float]:
        """What calls of this process alone have used today, by key; nothing where a file has them."""
        self._turn_day()
        return {} if self.is_shared else dict(self._by_key)

    @property
    def is_shared(self) -> bool:
        """Whether :meth:`seconds_today` has the calls of other processes too."""
        return self._path is not None

    def seconds_today(self, key: str) -> float:
        """What calls with this key have used today; with a file, those of all processes that keep it.

        While the disk hangs, the records of other processes are not seen.
        """
        if self._path is not None and self._settle():
            try:
                self._read()
                self._unread.clear()
            except OSError as error:
                self._log.error("usage not read", file=self._path, reason=error.strerror)
        self._turn_day()
        waiting = (it for _, it in self._waiting if it.key == key and it.ended[:10] == self._day)
        return self._by_key.get(key, 0.0) + self._unread.get(key, 0.0) + sum(it.seconds for it in waiting)

    def _read(self) -> None:
        """Take in what was appended since the last time."""
        assert self._path is not None
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read_bytes:  # rotated
                self._read_bytes = 0
            file.seek(self._read_bytes)
            while lines := file.readlines(READ_BYTES):
                for line in lines:
                    if not line.endswith(b"\n"):  # still being written
                        return
                    self._read_bytes += len(line)
                    self._count_line(line)

    def _count_line(self, line: bytes) -> None:
        if line == b"\n":  # it ended a torn line
            return
        try:
            self._count(UsageRecord(**json.loads(line)))
        except (ValueError, TypeError):
            self._log.warning("a line of the usage file is no record", file=self._path)

    def _count(self, record: UsageRecord) -> None:
        self._add(self._by_key, record)

    def _add(self, seconds: dict[str, float], record: UsageRecord) -> None:
        self._turn_day()
        if record.ended[:10] == self._day:
            seconds[record.key] = seconds.get(record.key, 0.0) + record.seconds

    def _turn_day(self) -> None:
        if self.day != self._day:
            self._day = self.day
            self._by_key.clear()
            self._unread.clear()

"""Records usage: one record for each connection of a call, and the seconds that each key has used today.

Records are lines of JSON. Several processes append to one file, each line in one write, and each reads the
others' lines, so that a day's seconds include all processes and survive a restart. One thread writes and
reads the file, in order, so a read includes every earlier write of this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from antiphon.errors import ConfigError
from antiphon.log import Log
from antiphon.serve.access.line_writer import LineWriter

READ_BYTES: Final = 1_048_576
"""Bytes of the file read at once: 5,000 records."""

SECONDS_A_DAY: Final = 86_400

DISK_S: Final = 0.25
"""Seconds that a read of the file may take. If the disk hangs, the result of the previous read is used."""

CLOSE_S: Final = 2.0
"""Seconds for writing the waiting records at the end of the process."""


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The usage of one connection of a call.

    ``session`` is the call's name, for all of its connections; ``key`` is a name, "" if no keys are required.
    ``tokens_in`` and ``tokens_out`` count the tokens of an agent's text model.
    """

    ended: str
    session: str
    key: str
    model: str
    seconds_in: float
    seconds_out: float
    words: int
    tokens_in: int = 0
    tokens_out: int = 0

    @property
    def seconds(self) -> float:
        """The seconds that count towards a day's limit: the longer of the two directions."""
        return max(self.seconds_in, self.seconds_out)


DayKey: TypeAlias = tuple[str, str]
Sums: TypeAlias = Mapping[DayKey, float]
"""Seconds by day and key."""


class _Waiting(NamedTuple):
    """A record that is not yet in the file."""

    number: int
    done: Future[None]
    record: UsageRecord


class _Look(NamedTuple):
    """The result of reading the file, after ``written`` records of this process."""

    written: int
    sums: Future[Sums]


class UsageLog:
    """The records of all calls. ``clock`` is the time of day, seconds since 1970; days are UTC days."""

    def __init__(
        self, path: Path | None, *, clock: Callable[[], float] = time.time, log: Log | None = None
    ) -> None:
        """Read today's records from an existing file; without a file, only usage since the server's start
        counts.

        Raises:
            ConfigError: the file cannot be read or written.
        """
        self._path = path
        self._clock = clock
        self._log = log or Log(__name__)
        self._read_bytes = 0
        self._reads_anew = False  # earlier records are of past days
        self._day, self._near = "", frozenset[str]()
        self._by_key: defaultdict[DayKey, float] = defaultdict(float)
        self._writer = None if path is None else LineWriter(path)
        self._waiting: list[_Waiting] = []
        self._written = 0  # records given to the writer
        self._unread: defaultdict[DayKey, float] = defaultdict(float)  # in the file, and not read yet
        self._look: _Look | None = None
        if path is not None:
            try:
                path.touch(0o640)
                self._add(self._read())
            except OSError as error:
                raise ConfigError(f"usage cannot be written to {path}: {error.strerror}") from error

    @property
    def day(self) -> str:
        """Today's date in the records' format."""
        return self.stamp()[:10]

    def stamp(self, days: int = 0) -> str:
        """The current time, or the time in ``days`` days, in the records' format."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock() + days * SECONDS_A_DAY))

    def seconds_left(self) -> int:
        """Seconds until the next day begins."""
        return SECONDS_A_DAY - int(self._clock()) % SECONDS_A_DAY

    def write(self, record: UsageRecord) -> None:
        """Record a call that has ended; its usage counts even if writing the file fails; the failure is
        logged.
        """
        self._log.info("usage", **asdict(record))
        if self._writer is None:
            self._count(self._by_key, record)
            return
        done = self._writer.write(json.dumps(asdict(record)).encode() + b"\n")
        if done.done() and done.exception() is not None:  # too many records wait
            self._keep(done, record)
            return
        self._waiting.append(_Waiting(self._written, done, record))
        self._written += 1
        self._settle()

    def close(self) -> None:
        """Write the waiting records, with one more wait for a hanging disk; records that are not written are
        logged as lost.
        """
        wait([each.done for each in self._waiting], CLOSE_S)
        self._settle()
        for each in self._waiting:
            if not each.done.done():
                reason = f"the disk hangs for {CLOSE_S:g} s"
                self._log.error("usage not recorded", file=self._path, reason=reason)

    async def refresh(self) -> None:
        """Read the lines of all processes, unless the disk hangs."""
        if self._writer is None:
            return
        self._settle()
        self._turn_day()
        if self._look is None:
            if self._reads_anew:
                self._read_bytes, self._reads_anew = 0, False
            self._look = _Look(self._written, self._writer.after_lines(self._read))
        looked = asyncio.wrap_future(self._look.sums)
        looked.add_done_callback(asyncio.Future.exception)  # the exception is read below, or next time
        await asyncio.wait([looked], timeout=DISK_S)
        self._settle()

    def _settle(self) -> None:
        """Apply results of the thread."""
        look = self._look
        if look is not None and not look.sums.done():  # a line written now may be included, or not
            return
        before = 0
        if look is not None:
            self._look = None
            error = look.sums.exception()
            if isinstance(error, OSError):
                self._log.error("usage not read", file=self._path, reason=error.strerror)
            else:
                self._add(look.sums.result())
                self._unread.clear()
                before = look.written
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done.done():
                self._waiting.append(each)
            elif each.number >= before or each.done.exception() is not None:
                self._keep(each.done, each.record)

    def _keep(self, done: Future[None], record: UsageRecord) -> None:
        """Count a record that is in the file, or was not accepted by it."""
        error = done.exception()
        if isinstance(error, OSError):
            self._log.error("usage not recorded", file=self._path, reason=error.strerror)
        self._count(self._unread if error is None else self._by_key, record)

    @property
    def seconds_here(self) -> dict[str, float]:
        """Usage in this process only, by key; empty if there is a file."""
        self._turn_day()
        if self.is_shared:
            return {}
        return {key: seconds for (day, key), seconds in self._by_key.items() if day == self._day}

    @property
    def is_shared(self) -> bool:
        """Whether :meth:`seconds_today` includes calls of other processes."""
        return self._path is not None

    def seconds_today(self, key: str) -> float:
        """Today's usage of this key; with a file, over all processes that write to it.

        The usage of other processes is as of the last :meth:`refresh`.
        """
        self._settle()
        self._turn_day()
        waiting = (it.record for it in self._waiting if it.record.key == key)
        unseen = sum(record.seconds for record in waiting if record.ended[:10] == self._day)
        today = self._day, key
        return self._by_key.get(today, 0.0) + self._unread.get(today, 0.0) + unseen

    def _read(self) -> Sums:
        """The sums of the lines appended since the last call; one call at a time, on any thread."""
        assert self._path is not None
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        with self._path.open("rb") as file:
            is_rotated = os.fstat(file.fileno()).st_size < self._read_bytes
            position = file.seek(0 if is_rotated else self._read_bytes)
            while lines := file.readlines(READ_BYTES):
                for line in lines:
                    if not line.endswith(b"\n"):  # still being written
                        self._read_bytes = position
                        return sums
                    position += len(line)
                    if line == b"\n":  # it ended a partial line
                        continue
                    try:
                        record = UsageRecord(**json.loads(line))
                        sums[record.ended[:10], record.key] += record.seconds
                    except (ValueError, TypeError):
                        self._log.warning("a line of the usage file is invalid", file=self._path)
        self._read_bytes = position  # only now: lines that failed are read again
        return sums

    def _add(self, sums: Sums) -> None:
        self._turn_day()
        if self._reads_anew:  # the next read finds them too
            return
        for (day, key), seconds in sums.items():
            if day in self._near:
                self._by_key[day, key] += seconds

    def _count(self, seconds: defaultdict[DayKey, float], record: UsageRecord) -> None:
        self._turn_day()
        if record.ended[:10] in self._near:
            seconds[record.ended[:10], record.key] += record.seconds

    def _turn_day(self) -> None:
        """Keep the sums of the neighbouring days, since a step of the clock by a day can make them today's.

        After a larger step, as of a clock that starts in the past, the file still has the sums.
        """
        day = self.day
        if day == self._day:
            return
        if self._path is not None and self._day and day not in self._near:
            self._reads_anew = True
            self._by_key.clear()
        self._day = day
        self._near = frozenset(self.stamp(days)[:10] for days in (-1, 0, 1))
        for sums in (self._by_key, self._unread):
            for it in [it for it in sums if it[0] not in self._near]:
                del sums[it]

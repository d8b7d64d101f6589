"""Retention of recordings: keeps the newest ones, within the limits on age and size."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]+-(heard|said)\.wav")
"""The name of a recording: its time, its session and its direction. Other files are never removed."""

STAMP: Final = "%Y%m%dT%H%M%SZ"

MAX_REMOVED: Final = 256
"""Maximum number of files that one sweep removes, in a few milliseconds of disk time; the next sweep
continues.
"""

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class RecordingLimits:
    """The limits on recordings: seconds of one call, bytes of all recordings, and their age in days; 0 means
    no limit.
    """

    max_s: float
    max_bytes: int
    max_days: float = 0.0


def sweep(folder: Path, limits: RecordingLimits, now_s: float, *, spared: Container[str] = ()) -> int:
    """Remove the oldest recordings while they are too old or together too large; return how many were
    removed.

    ``now_s`` is the wall clock's time. Files named in ``spared`` are still being written.

    Raises:
        OSError: a recording could not be removed; the others were removed.
    """
    sizes: dict[str, int] = {}
    with os.scandir(folder) as found:
        for entry in found:
            if NAME.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    sizes[entry.name] = entry.stat().st_size
    total, removed, failure = sum(sizes.values()), 0, None
    for name in sorted(sizes):  # names begin with their time
        if removed == MAX_REMOVED or not (total > limits.max_bytes or _is_old(name, limits, now_s)):
            break
        if name in spared:
            continue
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            failure = error
        else:
            total, removed = total - sizes[name], removed + 1
    if failure is not None:
        raise failure
    return removed


def _is_old(name: str, limits: RecordingLimits, now_s: float) -> bool:
    if not limits.max_days:
        return False
    try:
        begun_s = calendar.timegm(time.strptime(name.partition("-")[0], STAMP))
    except ValueError:  # an invalid date
        return True
    return now_s - begun_s > limits.max_days * DAY_S

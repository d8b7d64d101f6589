"""Structured logs: one line of ``key=value`` pairs on stderr, searchable by session.

Logs contain facts about the service, but no audio, text, query strings or prompts.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

ERASE = "\r\x1b[K"
"""Erases the current line of a terminal, which may show an unfinished progress line."""

_PLAIN = re.compile(r"[A-Za-z0-9_.:/+@%-]+")


def format_value(value: object) -> str:
    """Format one value: unquoted if it has no spaces, quotes or control characters, otherwise quoted on one
    line.
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text).replace("\x7f", "\\u007f")  # DEL, which JSON does not escape


class LogfmtFormatter(logging.Formatter):
    """Formats a log record as ``time=... level=... event=... key=value ...``, in UTC with milliseconds."""

    def __init__(self, fields: Mapping[str, object] | None = None, *, prefix: str = "") -> None:
        """``fields`` are on every line, after ``prefix``."""
        super().__init__()
        self._fields = dict(fields or {})
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line; an exception's traceback follows on its own lines."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs: dict[str, object] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        pairs.update(getattr(record, "fields", {}))
        pairs.update(self._fields)
        line = self._prefix + " ".join(f"{key}={format_value(value)}" for key, value in pairs.items())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class Log:
    """A logger that takes facts as keyword arguments and can bind some of them.

    ``log.info("session opened", model="echo")``; ``log.bind(session="a1")`` gives a child that adds
    ``session=a1`` to all its lines.
    """

    def __init__(self, name: str = "antiphon", **bound: object) -> None:
        """Log to the logger called ``name``, with ``bound`` on every line."""
        self._logger = logging.getLogger(name)
        self._bound = bound

    def bind(self, **fields: object) -> Log:
        """A child that adds ``fields`` to each of its lines."""
        return Log(self._logger.name, **{**self._bound, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """Log a line for developers."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a line for operators."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning that may need an operator."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: object) -> None:
        """Log an error of the server."""
        self._emit(logging.ERROR, event, fields, exc_info)

    def _emit(
        self, level: int, event: str, fields: dict[str, object], exc_info: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level, "%s", event, extra={"fields": {**self._bound, **fields}}, exc_info=exc_info
            )


LINE_PERIOD_S = 10.0
"""Seconds between two lines of one kind in a :class:`SparseLog` after a burst, which limits a kind to about 1
MB a day.
"""


class SparseLog:
    """A log of lines that peers can provoke. Each kind of line has a burst, then one line per
    ``LINE_PERIOD_S``.

    A line after omitted ones has their number as ``left_out``. The caller names the kinds.
    """

    def __init__(self, log: Log, clock: Callable[[], float], *, burst: int) -> None:
        """Write to ``log``; ``clock`` counts seconds."""
        self._log = log
        self._clock = clock
        self._ahead_s = (burst - 1) * LINE_PERIOD_S
        self._paid_until_s: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def bind(self, **fields: object) -> SparseLog:
        """A child that adds ``fields`` to each of its lines, which count with those of its parent."""
        child = copy.copy(self)
        child._log = self._log.bind(**fields)
        return child

    def info(self, event: str, *, of: str, **fields: object) -> None:
        """Log a line of the kind ``of``, or count the line as left out."""
        self._write(self._log.info, event, of, fields)

    def warning(self, event: str, *, of: str, **fields: object) -> None:
        """Log a warning of the kind ``of``, or count the warning as left out."""
        self._write(self._log.warning, event, of, fields)

    def error(self, event: str, *, of: str, **fields: object) -> None:
        """Log an error of the kind ``of``, or count the error as left out."""
        self._write(self._log.error, event, of, fields)

    def _write(self, write: Callable[..., None], event: str, of: str, fields: dict[str, object]) -> None:
        now_s = self._clock()
        paid_until_s = max(self._paid_until_s.get(of, now_s), now_s)
        if paid_until_s > now_s + self._ahead_s:
            self._left_out[of] += 1
            return
        self._paid_until_s[of] = paid_until_s + LINE_PERIOD_S
        left_out = self._left_out.pop(of, 0)
        write(event, **fields, **({"left_out": left_out} if left_out else {}))


def set_up_logging(level: str, stream: TextIO | None = None, **fields: object) -> None:
    """Send the process's log lines of ``level`` (one of ``LEVELS``) and above to ``stream`` (stderr).

    ``fields`` are on every line.
    """
    to = stream or sys.stderr
    handler = logging.StreamHandler(to)
    handler.setFormatter(LogfmtFormatter(fields, prefix=ERASE if to.isatty() else ""))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # aiohttp logs full request lines, including query strings; asyncio's debug lines contain reprs of data.
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    # Its one warning quotes the subprotocols that a client offers, which may contain API keys.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.WARNING)

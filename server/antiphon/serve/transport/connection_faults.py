"""Counts connections that fail because of their peer or for lack of file descriptors, and rarely logs them.

aiohttp and asyncio log each failure as an error, some with a traceback. A peer can cause failures at will, so
they are counted in ``antiphon_failed_connections_total``, and the log gets a line of each kind only
occasionally.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import Counter

from antiphon.log import Log, SparseLog
from antiphon.metrics import MetricFamilies
from antiphon.supervisor.connection_bounds import open_file_limit

OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
OUT_OF_RESOURCES: Final = OUT_OF_FILES | {errno.ENOBUFS, errno.ENOMEM}
"""Errors after which asyncio accepts no connection for a second
(``BaseSelectorEventLoop._accept_connection``).
"""


class ConnectionFault(StrEnum):
    """The kinds of connection failures, the values of the metric's label ``kind``."""

    MALFORMED = "malformed"
    RESET = "reset"
    TLS = "tls"


class ConnectionFaults:
    """Handles the failures that aiohttp, asyncio and ssl report. Used on the event loop only."""

    def __init__(self, families: MetricFamilies, log: Log, clock: Callable[[], float]) -> None:
        """Register the counters."""
        failed = families.get(Counter, "failed_connections")
        self._failed = {kind: failed.labels(kind.value) for kind in ConnectionFault}
        self._shortages = families.get(Counter, "resource_shortages")
        # One line and then a pause: only the number of such failures is of interest.
        self._log = SparseLog(log, clock, burst=1)

    def report(self, kind: ConnectionFault, error: BaseException) -> None:
        """Count a failure; only its type is logged, since its message may quote the peer."""
        self._failed[kind].inc()
        self._log.info("connection failed", of=kind, kind=kind, error=type(error).__name__)

    def take(self, error: object) -> bool:
        """Count an error of a connection; return false if it is an error of the server itself."""
        if isinstance(error, OSError) and error.errno in OUT_OF_FILES:
            self._report_shortage(error)
        elif isinstance(error, HttpProcessingError | web.RequestPayloadError):
            self.report(ConnectionFault.MALFORMED, error)
        elif isinstance(error, ConnectionError) and not isinstance(
            error, ConnectionRefusedError
        ):  # the server's own error
            self.report(ConnectionFault.RESET, error)
        elif isinstance(error, ssl.SSLError):
            self.report(ConnectionFault.TLS, error)
        else:
            return False
        return True

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an error as asyncio's exception handler; errors of the server itself go to the loop's
        default handler.
        """
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES and "socket" in context:
            self._report_shortage(error)
        elif not (self._is_accepted(context) and self.take(error)):
            loop.default_exception_handler(context)

    @staticmethod
    def _is_accepted(context: dict[str, Any]) -> bool:
        """Whether a failure concerns a connection that the server accepted, and not one it made, or a
        task."""
        protocol = context.get("protocol")
        if isinstance(protocol, SSLProtocol):
            return protocol._server_side
        return isinstance(protocol, web.RequestHandler)

    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger to give to aiohttp's server, which counts the failures that aiohttp logs."""
        return _ServerLogger(logging.getLogger("aiohttp.server"), self)

    def watch_tls(self, context: ssl.SSLContext) -> None:
        """Count a context's failed handshakes and records, which asyncio does not report."""
        counted = self._counted_tls

        class WatchedTls(ssl.SSLObject):
            def do_handshake(self) -> None:
                with counted():
                    super().do_handshake()

            def read(self, len: int = 1024, buffer: Any = None) -> Any:  # noqa: A002 (ssl's own name)
                with counted():
                    return super().read(len, buffer)

        context.sslobject_class = WatchedTls

    @contextmanager
    def _counted_tls(self) -> Iterator[None]:
        try:
            yield
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            self.report(ConnectionFault.TLS, error)
            raise

    def _report_shortage(self, error: OSError) -> None:
        self._shortages.inc()
        self._log.warning(
            "system resources have run out",
            of="shortage",
            error=errno.errorcode.get(error.errno or 0, ""),
            open_file_limit=open_file_limit(),
        )


class _ServerLogger(logging.LoggerAdapter[logging.Logger]):
    """Passes failures of connections on; every other line goes to the logger."""

    def __init__(self, logger: logging.Logger, faults: ConnectionFaults) -> None:
        super().__init__(logger)
        self._faults = faults

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self._faults.take(kwargs.get("exc_info")):
            super().log(level, msg, *args, **kwargs)

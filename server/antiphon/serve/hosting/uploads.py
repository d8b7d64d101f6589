"""Counts uploaded files and their bytes on disk in this process, and runs the thread that reads them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final, TypeVar, cast

from prometheus_client import Counter, Gauge

from antiphon.errors import ServerFullError
from antiphon.log import SparseLog
from antiphon.metrics import MetricFamilies

MAX_UPLOADS: Final = 32
"""Maximum number of recordings that are received or transcribed at once."""

LARGEST_ON_DISK: Final = 4
"""Number of recordings of the largest size that one process keeps on disk; smaller recordings share the same
space.
"""

IN_MEMORY_BYTES: Final = 1_048_576
"""Size in bytes below which a recording remains in memory."""

RETRY_AFTER_S: Final = 10


class Uploads:
    """Counts recordings (``count``) and their bytes on disk (``disk_bytes``). Used on the event loop only."""

    def __init__(self, max_upload_bytes: int, families: MetricFamilies, log: SparseLog) -> None:
        """Register the metrics; ``log`` occasionally gets a line while the disk has no space."""
        self._max_upload_bytes, self._log = max_upload_bytes, log
        self.count = self.disk_bytes = 0
        self._gauge = families.get(Gauge, "spooled_upload_bytes")
        self._refused = families.get(Counter, "spool_refusals")

    @contextlib.contextmanager
    def one(self, stated_bytes: int | None) -> Iterator[Spool]:
        """Count one more recording for the block; ``stated_bytes`` is the size announced by the sender.

        Raises:
            ServerFullError: there are too many recordings, or no space for this one.
        """
        if self.count >= MAX_UPLOADS:
            raise ServerFullError(
                f"{MAX_UPLOADS} recordings are being transcribed; try again in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        if (stated_bytes or 0) > IN_MEMORY_BYTES:
            self._check(min(stated_bytes or 0, self._max_upload_bytes))
        spool = Spool(self)
        self.count += 1
        try:
            yield spool
        finally:
            self.count -= 1
            spool.close()

    def grow(self, size: int) -> None:
        """Count ``size`` more bytes on disk, or fewer if negative.

        Raises:
            ServerFullError: there is no space for these bytes.
        """
        self._check(size)
        self.disk_bytes += size
        self._gauge.set(self.disk_bytes)

    def refuse(self, reason: str) -> ServerFullError:
        """The error for missing space, counted and logged."""
        self._refused.inc()
        self._log.error("no space for a recording", of="spool", reason=reason, spooled_bytes=self.disk_bytes)
        return ServerFullError(
            f"there is no space for this recording: {reason}; try again in {RETRY_AFTER_S} s",
            retry_after_s=RETRY_AFTER_S,
        )

    def _check(self, size: int) -> None:
        room = LARGEST_ON_DISK * self._max_upload_bytes
        if size > 0 and self.disk_bytes + size > room:
            raise self.refuse(f"{self.disk_bytes} of {room} bytes are in use")


class Spool:
    """Stores one recording, in memory or, above ``IN_MEMORY_BYTES``, in an unnamed file."""

    def __init__(self, uploads: Uploads) -> None:
        """Start empty."""
        self._uploads = uploads
        self._size = self._disk_bytes = 0
        self._spooled = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 (close() does)
        self.file = cast("BinaryIO", self._spooled)

    def write(self, data: bytes) -> None:
        """Append bytes to the recording.

        Raises:
            ServerFullError: the disk has no space for the bytes, or the limit is reached.
        """
        self._size += len(data)
        if self._size > IN_MEMORY_BYTES:
            self._uploads.grow(self._size - self._disk_bytes)
            self._disk_bytes = self._size
        self._try(lambda: self._spooled.write(data))

    def flush(self) -> None:
        """Write all buffered bytes, so that they can be read; raises as :meth:`write`."""
        self._try(self._spooled.flush)

    def close(self) -> None:
        """Delete the stored recording."""
        self._uploads.grow(-self._disk_bytes)
        self._disk_bytes = 0
        with contextlib.suppress(OSError):  # bytes that a full disk rejected are tried again here
            self._spooled.close()

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            raise self._uploads.refuse(error.strerror or "the disk failed") from error


MAX_JOBS: Final = 64
"""Maximum number of jobs that wait or run: one for each recording that may be uploaded at once, and the same
number for voices.
"""

JOB_RETRY_S: Final = 5
"""Maximum seconds until waiting jobs are done. A job decodes a second of audio, or reads a file of some
megabytes.
"""

T = TypeVar("T")


class Helper:
    """Runs jobs one at a time, in order, on a separate thread. Used by the event loop only."""

    def __init__(self) -> None:
        """Start without a thread; the first job starts it."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="antiphon-helper")
        self._jobs = 0

    async def run(self, job: Callable[..., T], *args: object) -> T:
        """Run ``job`` and return its result; raises its error.

        Raises:
            ServerFullError: too many jobs wait.
        """
        if self._jobs >= MAX_JOBS:
            raise ServerFullError(
                f"{self._jobs} files wait to be read, which is the most there may be; "
                f"try again in {JOB_RETRY_S} s",
                retry_after_s=JOB_RETRY_S,
            )
        self._jobs += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, job, *args)
        future.add_done_callback(self._done)
        return await future

    def _done(self, _future: object) -> None:
        self._jobs -= 1

    def close(self) -> None:
        """End the thread after its current job; waiting jobs are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

"""One thread beside the event loop, for what takes longer than a turn: files, prompts, whole recordings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from antiphon.errors import ServerFullError

MAX_JOBS: Final = 64
"""Jobs that wait or run: one of each recording that may be uploaded at once, and as many voices."""

RETRY_AFTER_S: Final = 5
"""By then the jobs that wait now are done: each is a second of audio, or a file of some megabytes."""

T = TypeVar("T")


class Helper:
    """Runs jobs one after the other, in the order they came. Only the event loop asks it."""

    def __init__(self) -> None:
        """The thread begins with its first job."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="antiphon-helper")
        self._jobs = 0

    async def run(self, job: Callable[..., T], *args: object) -> T:
        """What ``job`` returns, or raises.

        Raises:
            ServerFullError: too many jobs wait.
        """
        if self._jobs >= MAX_JOBS:
            raise ServerFullError(
                f"{self._jobs} files wait to be read, which is the most there may be; "
                f"try again in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        self._jobs += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, job, *args)
        future.add_done_callback(self._done)
        return await future

    def _done(self, _future: object) -> None:
        self._jobs -= 1

    def close(self) -> None:
        """End the thread after the job it is at; the others are given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)

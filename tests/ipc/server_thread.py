"""The server for front ends of an engine process, on an event loop in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from antiphon.engine.engine import Engine
from antiphon.engine.front_ends import FrontEndServer

T = TypeVar("T")
LOOK_S = 0.25
PATIENCE_S = 120.0


class ServerThread:
    """:class:`FrontEndServer` for tests that do not run on its loop."""

    def __init__(
        self, engines: Mapping[str, Engine], *, on_dropped: Callable[[int], None] = lambda _: None
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="front-ends")
        self._thread.start()
        self.server = self.do(lambda: FrontEndServer(engines, self.loop, on_dropped=on_dropped))
        self._looking = asyncio.run_coroutine_threadsafe(self._look(), self.loop)

    async def _look(self) -> None:
        while True:
            self.server.watch_front_ends()
            await asyncio.sleep(LOOK_S)

    def do(self, work: Callable[[], T]) -> T:
        """Do something on the loop."""

        async def run() -> T:
            return work()

        return self._wait(run())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def add(self, pool: int, control: socket.socket) -> None:
        self.do(lambda: self.server.add(pool, control))

    def take_back(self, pool: int) -> None:
        self.do(lambda: self.server.take_back(pool))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The loop reads nothing meanwhile."""
        is_over, is_paused = threading.Event(), threading.Event()

        def pause() -> None:
            is_paused.set()
            is_over.wait(PATIENCE_S)

        self.loop.call_soon_threadsafe(pause)
        assert is_paused.wait(PATIENCE_S)
        try:
            yield
        finally:
            is_over.set()

    def stop(self) -> None:
        self._looking.cancel()
        self.do(self.server.stop)
        self.server.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

"""All front ends of an engine process: one thread that reads what they say and lets go of those that died."""

from __future__ import annotations

import functools
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from antiphon.engine.engine import Engine
from antiphon.engine.front_end import FrontEndRequests
from antiphon.engine.pools import Pools
from antiphon.errors import AntiphonError, ProtocolError
from antiphon.ipc import messages
from antiphon.ipc.memory import hush, ring
from antiphon.ipc.post import Post, close_all
from antiphon.log import Log

TURN_S: Final = 0.25
"""How often front ends receive the engines' state, and a full socket is retried."""

FULL_TURN_S: Final = 0.02
"""The same while messages wait for a full socket."""


class Fleet:
    """Front ends in other processes, each with its pool of every engine's leases.

    ``on_dropped`` is called, on the fleet's thread, with the pool of a front end that has gone or takes no
    messages: its calls have ended. Its leases come back with :meth:`take_back`, once its process is reaped:
    until then it may write to them.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        *,
        on_dropped: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Stand for started engines, made with ``pools`` and an ``EventWake``."""
        self._engines = tuple(Pools(name, engine) for name, engine in engines.items())
        self._on_dropped, self._clock = on_dropped, clock
        self._front_ends: dict[int, FrontEndRequests] = {}
        self._bells: dict[int, int] = {}  # one a pool, for good: an engine thread may be about to ring it
        self._held: dict[int, dict[Pools, list[int]]] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._told_s = 0.0
        self._is_stopped = False
        self._lock = threading.RLock()  # the fleet's thread holds it but while it sleeps
        self._thread = threading.Thread(target=self._run, name="antiphon-fleet", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and all calls; the engines go on."""
        self._is_stopped = True
        ring(self._wake)
        self._thread.join()
        for pool in tuple(self._front_ends):
            self._drop(pool, "the engine's process leaves")
            self.take_back(pool)
        close_all(tuple(self._bells.values()))
        self._selector.close()
        os.close(self._wake)

    def add(self, pool: int, control: socket.socket) -> None:
        """A front end begins on a pool that is free; ``control`` is one end of its SOCK_SEQPACKET pair."""
        post = Post(control, self._clock)
        with self._lock:
            self._front_ends[pool] = FrontEndRequests(pool, post, self._engines)
            self._selector.register(post, selectors.EVENT_READ, pool)
            self._attend(pool, self._greet)
        ring(self._wake)

    def _greet(self, front_end: FrontEndRequests) -> None:
        pool = front_end.pool
        if pool not in self._bells:
            self._bells[pool] = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        bell = self._bells[pool]
        models, descriptors = [], [bell]
        for pools in self._engines:
            facts, shared = pools.lend(pool, bell)
            models.append(facts)
            descriptors += shared
        front_end.post.send(messages.Hello(pool, models), descriptors)

    def take_back(self, pool: int) -> None:
        """The front end's process has ended: nothing writes to its leases any more, and all are free."""
        with self._lock:
            self._drop(pool, "its process has ended")
            for pools, leases in self._held.pop(pool, {}).items():
                pools.let_go(leases)
            for pools in self._engines:
                pools.take_back(pool)

    def calls(self) -> dict[int, int]:
        """The calls of each front end, by its pool."""
        return {pool: front_end.calls for pool, front_end in tuple(self._front_ends.items())}

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                self._turn()
            except Exception as error:  # a boundary: without this thread every front end is deaf
                Log(__name__).error("a turn of the fleet failed", exc_info=error)
                time.sleep(FULL_TURN_S)

    def _turn(self) -> None:
        is_full = any(it.post.has_waiting for it in tuple(self._front_ends.values()))
        found = self._selector.select(FULL_TURN_S if is_full else TURN_S)
        with self._lock:
            for key, _ in found:
                if key.data is None:
                    hush(self._wake)
                else:
                    self._attend(key.data, FrontEndRequests.read)
            now_s = self._clock()
            is_due = now_s - self._told_s >= TURN_S
            if is_due:
                self._told_s = now_s
            for pool in tuple(self._front_ends):
                self._attend(pool, functools.partial(self._look_after, now_s=now_s, is_due=is_due))

    def _attend(self, pool: int, work: Callable[[FrontEndRequests], None]) -> None:
        """Do something for one front end; what fails there drops it, and the others go on."""
        front_end = self._front_ends.get(pool)
        if front_end is None:
            return
        try:
            work(front_end)
        except EOFError:
            self._drop(pool, "its process has gone")
        except AntiphonError as error:
            self._drop(pool, str(error))
        except Exception as error:  # a boundary
            Log(__name__).error("a front end could not be served", pool=pool, exc_info=error)
            self._drop(pool, f"it could not be served: {error!r}")

    def _look_after(self, front_end: FrontEndRequests, *, now_s: float, is_due: bool) -> None:
        front_end.post.flush()
        if front_end.post.is_stuck(now_s):
            raise ProtocolError("it takes no messages")
        if is_due and not front_end.post.has_waiting:
            for model, pools in enumerate(self._engines):
                front_end.post.send(messages.HealthNow(model, asdict(pools.engine.health())))

    def _drop(self, pool: int, reason: str) -> None:
        front_end = self._front_ends.pop(pool, None)
        if front_end is None:
            return
        self._selector.unregister(front_end.post)
        log = Log(__name__).warning if front_end.calls else Log(__name__).info
        log("front end dropped", pool=pool, calls=front_end.calls, reason=reason)
        self._held[pool] = front_end.give_up(reason)
        self._on_dropped(pool)

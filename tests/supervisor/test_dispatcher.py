"""Accepted connections wait and go to fake front ends inside a test."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from antiphon.log import Log
from antiphon.metrics import MetricFamilies
from antiphon.supervisor import dispatcher
from antiphon.supervisor.address import bound
from antiphon.supervisor.children import Child
from antiphon.supervisor.connection_bounds import ConnectionLimits
from antiphon.supervisor.dispatcher import Dispatcher
from antiphon.supervisor.messages import Load
from tests.supervisor.running import PATIENCE_S


class FrontEnd:
    """Takes connections, of which none closes, after as many failures."""

    def __init__(self, *failures: int) -> None:
        self.failures, self.numbers, self.passed = list(failures), list[int](), asyncio.Event()
        self.child = cast("Child", SimpleNamespace(is_responsive=True, peer=SimpleNamespace(send=self.send)))

    def send(self, message: Any, _descriptors: Sequence[int]) -> None:
        if self.failures:
            raise OSError(number := self.failures.pop(), os.strerror(number))
        self.numbers.append(message.number)
        self.passed.set()

    async def has(self, count: int) -> None:
        """Wait until so many were passed on."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.numbers) < count:
                self.passed.clear()
                await self.passed.wait()


class Server:
    """A dispatcher on a free port, and those who call it."""

    def __init__(self, listeners: Sequence[socket.socket], stack: ExitStack, **limits: Any) -> None:
        self.families = MetricFamilies(CollectorRegistry())
        self.addresses: list[str] = []
        self.address, self._stack = listeners[0].getsockname(), stack
        self.dispatcher = Dispatcher(
            listeners,
            ConnectionLimits(**limits),
            counted_address=lambda address: self.addresses.pop(0) if self.addresses else address,
            families=self.families,
            log=Log(),
        )
        self.dispatcher.open()

    def call(self) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(self.address, PATIENCE_S))

    def value(self, name: str) -> float | None:
        return self.families.registry.get_sample_value(f"antiphon_{name}_total")


@contextmanager
def serving(**limits: Any) -> Iterator[Server]:
    with bound("127.0.0.1", 0) as listeners, ExitStack() as stack:
        server = Server(listeners, stack, **limits)
        yield server
        server.dispatcher.close()
        for number in (1, 2):
            server.dispatcher.remove(number)


async def test_a_connection_that_cannot_be_passed_on_is_passed_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "SHORTAGE_PAUSE_S", 0.01)
    front_end = FrontEnd(errno.EMFILE, errno.EMFILE)
    with serving() as server:
        server.dispatcher.add(1, front_end.child)
        server.call()
        await front_end.has(1)
        assert [share.load for share in server.dispatcher.shares] == [1]
        assert server.value("resource_shortages") == 2.0


async def test_a_connection_that_closes_ends_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "SHORTAGE_PAUSE_S", 10 * PATIENCE_S)
    front_end = FrontEnd()
    with serving() as server:
        server.dispatcher.add(1, front_end.child)
        server.call()
        await front_end.has(1)
        front_end.failures = [errno.EMFILE]
        server.call()
        async with asyncio.timeout(PATIENCE_S):
            while server.value("resource_shortages") != 1.0:  # noqa: ASYNC110 (the dispatcher is of this loop)
                await asyncio.sleep(0)
        server.dispatcher.report(1, Load(1, 1))
        assert len(front_end.numbers) == 1
        server.dispatcher.report(1, Load(1, 0, (1,)))
        server.call()
        await front_end.has(3)


async def test_a_burst_that_has_room_is_served_and_none_of_it_turned_away() -> None:
    """Of eight, two may wait and two are for those that have sent something; six were closed."""
    front_end = FrontEnd()
    with serving(connections=8) as server:
        server.dispatcher.add(1, front_end.child)
        callers = [server.call() for _ in range(8)]
        await front_end.has(6)
        for caller in callers:
            caller.send(b"hello")
        await front_end.has(8)
        assert server.value("turned_away_connections") == 0.0


async def test_the_log_names_the_connection_that_gave_way(caplog: pytest.LogCaptureFixture) -> None:
    with serving(connections=8) as server:
        server.addresses = ["198.51.100.1", "198.51.100.1", "198.51.100.2"]
        first, _, _ = (server.call() for _ in range(3))
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.to_thread(first.recv, 1) == b""
    (said,) = [it.fields for it in caplog.records if it.message == "connection rejected"]  # type: ignore[attr-defined]
    assert (said["address"], said["reason"]) == ("198.51.100.1", "too many connections wait")


async def test_closing_ends_the_connections_that_wait_or_are_under_way() -> None:
    front_end = FrontEnd()
    with serving(connections=8, connections_per_address=0) as server:
        server.dispatcher.add(1, front_end.child)
        callers = [server.call() for _ in range(8)]
        await front_end.has(6)
        server.dispatcher.close()
        server.dispatcher.report(1, Load(1, 0, (1,)))  # which makes room
        server.dispatcher.remove(1)
        for caller in callers:
            assert await asyncio.to_thread(caller.recv, 1) == b""
        assert len(front_end.numbers) == 6

"""Children that are tasks, and connections for which no open file is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from antiphon.errors import ConfigError
from antiphon.ipc.message_socket import local_pair
from antiphon.log import Log
from antiphon.metrics import MetricFamilies
from antiphon.supervisor import dispatcher
from antiphon.supervisor.address import bound
from antiphon.supervisor.children import Child, LocalTask
from antiphon.supervisor.connection_bounds import ConnectionLimits
from antiphon.supervisor.dispatcher import Dispatcher
from antiphon.supervisor.messages import Load, Ready
from tests.supervisor.running import PATIENCE_S


async def do(work: str) -> None:
    if work == "refuse":
        raise ConfigError("the port is taken")
    if work == "break":
        raise RuntimeError("a bug")
    if work == "wait":
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("work", "code", "failure"),
    [
        ("refuse", 2, "the port is taken"),
        ("break", 1, "the part process ended with 1 before it was ready"),
        ("wait", -signal.SIGKILL, "the part process ended with -9 before it was ready"),
        ("return", 0, "the part process ended with 0 before it was ready"),
    ],
)
async def test_a_task_ends_as_a_process_does(work: str, code: int, failure: str) -> None:
    end, ours = local_pair()
    child = Child("part", LocalTask(do(work), end), ours.connect, lambda *_: None)
    await asyncio.sleep(0)
    if work == "wait":
        child.kill()
    assert await child.ended == code
    assert (child.failure, child.is_ready, child.is_alive) == (failure, False, False)


async def test_a_task_that_was_ready_is_heard_to_its_end() -> None:
    end, ours = local_pair()
    heard: list[Any] = []
    ready, load = Ready(("a part",)), Load(1, 1)

    async def work() -> None:
        end.send(ready)
        end.send(load)

    child = Child("part", LocalTask(work(), end), ours.connect, lambda message, _: heard.append(message))
    assert await child.ready is ready
    assert await child.ended == 0
    assert heard == [load]


async def test_a_connection_that_cannot_be_passed_on_is_passed_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "SHORTAGE_PAUSE_S", 0.01)
    failures, passed = [errno.EMFILE, errno.EMFILE], asyncio.Event()

    def send(_message: object, _descriptors: Sequence[int]) -> None:
        if failures:
            raise OSError(number := failures.pop(), os.strerror(number))
        passed.set()

    child = cast("Child", SimpleNamespace(is_responsive=True, peer=SimpleNamespace(send=send)))
    families = MetricFamilies(CollectorRegistry())
    with bound("127.0.0.1", 0) as listeners:
        accepting = Dispatcher(
            listeners, ConnectionLimits(), counted_address=str, families=families, log=Log()
        )
        accepting.add(1, child)
        accepting.open()
        with socket.create_connection(listeners[0].getsockname()):
            async with asyncio.timeout(PATIENCE_S):
                await passed.wait()
        accepting.close()
    assert [share.load for share in accepting.shares] == [1]
    assert families.registry.get_sample_value("antiphon_resource_shortages_total") == 2.0
    for _, connection in accepting.shares[0].under_way:
        connection.close()

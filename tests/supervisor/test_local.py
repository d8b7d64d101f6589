"""Children that are tasks."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.ipc.message_socket import local_pair
from antiphon.supervisor.children import Child, LocalTask
from antiphon.supervisor.messages import Load, Ready


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
        ("break", 1, "the part task ended with 1 before it was ready"),
        ("wait", -signal.SIGKILL, "the part task ended with -9 before it was ready"),
        ("return", 0, "the part task ended with 0 before it was ready"),
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

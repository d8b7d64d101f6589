"""A supervisor that is killed or paused, with or without the other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.supervisor.alone import SILENT_S
from tests.supervisor.running import PATIENCE_S, Running

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

REPOSITORY = Path(__file__).parents[2]
STOPPED_S = 2 * SILENT_S
"""Twice what a front end may be silent for."""


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[Running, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.supervisor.alone"), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    running = Running(int(await process.stdout.readline()), asyncio.create_task(process.wait()))
    try:
        yield running, process
    finally:
        for caller in running.callers:
            caller.close()
        if process.returncode is None:
            process.kill()
        await running.ends()


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_killed_supervisor_leaves_no_process() -> None:
    async with alone() as (running, process):
        caller = await running.call()
        pids = children_of(process.pid)
        assert len(pids) == 3
        process.kill()
        assert await caller.is_dropped()
        await running.ends()
        async with asyncio.timeout(PATIENCE_S):
            while any(map(is_running, pids)):  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.01)


async def test_a_stopped_supervisor_blames_nobody() -> None:
    async with alone() as (running, process):
        one, two = await running.call(), await running.call()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.0)
        assert await one.say("take 1 key 9") == "granted"
        assert await two.say("take 1 key 9") == "granted"


async def test_a_machine_that_stood_still_blames_nobody() -> None:
    async with alone() as (running, process):
        one, two = await running.call(), await running.call()
        pids = children_of(process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)  # the supervisor waits for their answers
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.3)  # the supervisor looks before the others have run
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert await one.say("take 1 key 9") == "granted"
        assert await two.say("take 1 key 9") == "granted"
        assert children_of(process.pid) == pids


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

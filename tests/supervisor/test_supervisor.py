"""A supervisor with real processes: assignment of connections, dead or stopped children, its end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.ipc import message_socket
from antiphon.ipc.message_socket import Handle, local_pair
from antiphon.supervisor import hangs, supervisor
from antiphon.supervisor.answers import join_traces
from antiphon.supervisor.children import (
    ANSWER_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    RESPONSIVE_S,
    SILENT_S,
    STEADY_S,
    Child,
    ChildProcesses,
    LocalTask,
    next_pause_s,
)
from antiphon.supervisor.messages import Begin, Link, Message, Ready
from tests.supervisor.running import PATIENCE_S, STUB, children, supervised

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

BACK_S = 60.0
"""A front end that ended is back within this time."""


async def test_a_killed_front_end_costs_its_own_callers_alone_and_is_back_in_time() -> None:
    async with supervised() as running:
        for _ in range(8):
            await running.call()
        theirs = [caller for caller in running.callers if caller.front_end == 1]
        others = [caller for caller in running.callers if caller.front_end == 2]
        os.kill(theirs[0].pid, signal.SIGKILL)
        killed_s = time.monotonic()
        assert all(await asyncio.gather(*(caller.is_dropped() for caller in theirs)))
        for caller in others:
            assert await caller.say("take 1 key 9") == "granted"
        back = await running.call()
        while back.front_end != 1:
            await asyncio.sleep(0.05)
            back = await running.call()
        assert time.monotonic() - killed_s < BACK_S
        assert back.pid != theirs[0].pid
        health = await running.health()
        assert health["models"] == {"links": [1, 2], "gone": [1], "is_lost": False}


async def test_a_stopped_front_end_is_replaced_and_loses_no_new_connection() -> None:
    async with supervised(front_ends=1, silent_s=SILENT_S, responsive_s=RESPONSIVE_S) as running:
        first = await running.call()
        os.kill(first.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        new = await asyncio.gather(*(running.call() for _ in range(20)))
        assert 0.5 < time.monotonic() - began_s < 2.0 + BACK_S + 1.0
        assert {caller.pid for caller in new} != {first.pid}
        assert await first.is_dropped()


async def test_without_a_front_end_that_begins_the_server_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "UNSERVED_S", PATIENCE_S)

    def ends() -> list[dict[str, Any]]:
        return [vars(record)["fields"] for record in caplog.records if record.message == "front end ended"]

    async with supervised(front_ends=1, front_end=f"once={tmp_path / 'begun'}") as running:
        os.kill((await running.call()).pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while len(ends()) < 2:  # noqa: ASYNC110 (other processes)
                await asyncio.sleep(0.02)
        monkeypatch.setattr(supervisor, "UNSERVED_S", 0.0)  # it is over
        assert await running.ends() == supervisor.EXIT_NONE_LEFT
    assert ends()[1]["reason"] == "the stub was asked to begin once"
    assert "reason" not in ends()[0]
    assert "server gives up" in caplog.text


async def test_a_front_end_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with supervised(front_ends=1) as running:
        first = await running.call()
        execute, failures = asyncio.create_subprocess_exec, [errno.EAGAIN, errno.EMFILE]

        async def fail_first(*command: str, **how: Any) -> asyncio.subprocess.Process:
            if failures:
                raise OSError(number := failures.pop(), os.strerror(number))
            return await execute(*command, **how)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", fail_first)
        os.kill(first.pid, signal.SIGKILL)
        assert (await running.call()).pid != first.pid
        assert not failures


async def test_a_link_that_cannot_be_passed_on_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    send = message_socket.MessageSocket.send

    def fail_links(self: Any, message: Any, descriptors: Sequence[int] = ()) -> None:
        if isinstance(message, Link):
            raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))
        send(self, message, descriptors)

    async with supervised() as running:
        one, two = await running.call(), await running.call()
        monkeypatch.setattr(message_socket.MessageSocket, "send", fail_links)
        for number in (one.front_end, two.front_end, 99):
            async with asyncio.timeout(PATIENCE_S):
                assert await one.say(f"link {number}") == "ended"
        assert await two.say("take 1 key 9") == "granted"


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_no_front_end_is_replaced_while_the_server_leaves(
    monkeypatch: pytest.MonkeyPatch, is_leaving: bool
) -> None:
    """Whether it ends before the signal, and is to be replaced after a pause, or behind it."""
    pause_s = FIRST_PAUSE_S if is_leaving else 2.0
    monkeypatch.setattr(supervisor, "next_pause_s", lambda *_: pause_s)
    async with supervised(drain_s=60.0) as running:
        one, two = await running.call(), await running.call()
        begun = {*children()}
        if is_leaving:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0)
        os.kill(one.pid, signal.SIGKILL)
        await one.is_dropped()
        if not is_leaving:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(2 * pause_s)
        async with asyncio.timeout(PATIENCE_S):
            while one.pid in children():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        assert {*children()} == begun - {one.pid}, "the engine and the other front end"
        two.close()
        assert await running.ends() == 0
    assert children() == []


async def test_a_front_end_that_answers_late_but_in_time_stays() -> None:
    async with supervised() as running:
        caller = await running.call()
        caller.writer.write(b"block 1.0\n")
        await asyncio.sleep(1.5)
        assert await caller.say("take 1 key 9") == "granted"


async def test_leases_count_for_all_front_ends_and_come_back_with_a_dead_one() -> None:
    async with supervised() as running:
        one, two = await running.call(), await running.call()
        assert one.front_end != two.front_end
        assert await one.say("take 1 alice 2") == "granted"
        assert await two.say("take 1 alice 2") == "granted"
        assert await two.say("take 2 alice 2") == "the key 'alice' has 2 of 2 sessions"
        os.kill(one.pid, signal.SIGKILL)
        await one.is_dropped()
        async with asyncio.timeout(PATIENCE_S):
            while await two.say("take 2 alice 2") != "granted":  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)


async def test_metrics_are_sums_and_counters_survive_a_process() -> None:
    async with supervised() as running:
        for _ in range(4):
            await running.call()
        assert b"greeted_total 5.0" in await (await running.call()).ask("metrics")
        victim = next(caller for caller in running.callers if caller.front_end == 2)
        os.kill(victim.pid, signal.SIGKILL)
        await victim.is_dropped()
        other = next(caller for caller in running.callers if caller.front_end == 1)
        held = running.spread()[1]
        async with asyncio.timeout(PATIENCE_S):
            while b"antiphon_front_end_restarts_total 1.0" not in (text := await other.ask("metrics")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert b"greeted_total 5.0" in text
    assert b"\nheld %d.0" % held in text
    assert b"ticks_total 7.0" in text


async def test_a_silent_process_is_left_out_of_an_answer_in_time() -> None:
    async with supervised(answer_s=5.0) as running:  # the engine has this time, and answers at once
        one, two = await running.call(), await running.call()
        os.kill(two.pid, signal.SIGSTOP)
        text = await one.ask("metrics")
        assert b"ticks_total 7.0" in text
        os.kill(two.pid, signal.SIGCONT)
        assert await two.say("take 1 key 9") == "granted"


async def test_a_signal_ends_everything_and_a_call_may_finish() -> None:
    async with supervised() as running:
        caller = await running.call()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert await (await running.call()).say("take 1 key 9") == "granted"  # still answered
        for caller in running.callers:
            caller.close()
        assert await running.ends() == 0
    assert children() == []


async def test_the_second_signal_does_not_wait() -> None:
    async with supervised(drain_s=60.0) as running:
        await running.call()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        assert await running.ends() == 130
    assert children() == []


async def test_an_engine_that_was_stopped_for_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_socket, "MAX_WAITING", 16)
    monkeypatch.setattr(supervisor, "PING_PERIOD_S", 0.002)
    async with supervised(responsive_s=RESPONSIVE_S, answer_s=ANSWER_S) as running:
        caller = await running.call()
        engine = next(pid for pid in children() if b"engine" in cmdline(pid))
        os.kill(engine, signal.SIGSTOP)
        await asyncio.sleep(2.0)
        answers = [json.loads(await caller.ask("health")) for _ in range(20)]
        assert not any(answer["engine_answers"] for answer in answers)
        os.kill(engine, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE_S):
            while not json.loads(await caller.ask("health"))["engine_answers"]:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("words", ["stuck=0", ""])
async def test_an_engine_that_hangs_ends_while_another_works(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hangs, "STUCK_S", 0.4)
    if not words:
        monkeypatch.setattr(hangs, "ENGINE_SILENT_S", 2.0)
    async with (
        supervised(engines=2, engine=words, responsive_s=RESPONSIVE_S) as running,
        asyncio.timeout(PATIENCE_S),
    ):
        if not words:
            os.kill(next(pid for pid in children() if b"engine" in cmdline(pid)), signal.SIGSTOP)
        while sum(b"engine" in cmdline(pid) for pid in children()) > 1:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
        assert await (await running.call()).say("take 1 key 9") == "granted"


async def test_a_stall_of_all_engines_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is silent for longer, and resumes before the other."""
    monkeypatch.setattr(hangs, "ENGINE_SILENT_S", silent_s := 4.0)
    async with supervised(engines=2, responsive_s=RESPONSIVE_S) as running, asyncio.timeout(PATIENCE_S):
        engines = [pid for pid in children() if b"engine" in cmdline(pid)]
        for pid in engines:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(0.4)
        await asyncio.sleep(1.5 * silent_s)
        for pid in engines:
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(1.0)
        assert await (await running.call()).say("take 1 key 9") == "granted"
        assert sorted(pid for pid in children() if b"engine" in cmdline(pid)) == sorted(engines)


async def test_without_its_engine_the_server_ends() -> None:
    async with supervised(drain_s=0.1) as running:
        await running.call()
        engine = next(pid for pid in children() if b"engine" in cmdline(pid))
        os.kill(engine, signal.SIGKILL)
        assert await running.ends() == 70
    assert children() == []


async def test_the_server_ends_though_its_engine_cannot_be_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a driver holds it in the kernel: it stays, the server says so and ends in a bounded time."""
    monkeypatch.setattr(supervisor, "KILLED_S", 3.0)  # the front ends have time to end
    held: list[Child] = []

    async def start(number: int, hear: Handle[Message]) -> Child:
        command = [sys.executable, STUB, "engine", "stay"]
        held.append(await Child.start("engine", command, hear))
        held[0].peer.send(Begin(number, b""))
        monkeypatch.setattr(held[0], "kill", lambda: None)
        return held[0]

    async with supervised(start_engine=start, leave_s=0.3) as running:
        await running.call()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.ends() == 0
    (said,) = [it for it in caplog.records if it.message == "process cannot be killed"]
    assert said.fields == {"process": "engine", "pid": held[0].pid}  # type: ignore[attr-defined]
    assert children() == [held[0].pid]
    held[0].process.kill()
    await held[0].ended


async def test_a_lost_device_lets_the_others_finish_and_is_the_exit_code() -> None:
    async with supervised(engine="lose", drain_s=PATIENCE_S) as running:
        caller = await running.call()
        os.kill(os.getpid(), signal.SIGTERM)  # the stub loses its device when it is asked to drain
        async with asyncio.timeout(PATIENCE_S):
            while not json.loads(await caller.ask("health"))["models"]["is_lost"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await caller.say("take 1 key 9") == "granted"
        caller.close()
        assert await running.ends() == 70


async def test_a_front_end_that_is_not_replaced_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async with supervised(front_ends=1, replaces=False) as running:
        os.kill((await running.call()).pid, signal.SIGKILL)
        assert await running.ends() == supervisor.EXIT_NONE_LEFT
    assert reasons(caplog) == ["the front-end-1 ended with -9"]
    assert children() == []


async def test_an_engine_that_ends_before_the_front_ends_begin_is_one_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def start_engine(_number: int, hear: Handle[Message]) -> Child:
        async def work() -> None:
            end.send(Ready(("an engine",)))

        end, ours = local_pair()
        child = Child("engine", LocalTask(work(), end), ours.connect, hear)
        await child.ended
        return child

    async with supervised(start_engine=start_engine) as running:
        assert await running.ends() == supervisor.EXIT_NONE_LEFT
    assert reasons(caplog) == ["every engine has ended before the front ends have started"]


async def test_front_ends_start_while_the_engine_loads() -> None:
    """They import their modules then; each begins to serve when the engine is ready."""
    stubs = ChildProcesses((sys.executable, STUB, "engine", ""), (sys.executable, STUB, "front-end", ""), b"")
    started: list[int] = []
    are_started = asyncio.Event()
    loading: list[asyncio.Task[None]] = []

    async def start_engine(number: int, hear: Handle[Message]) -> Child:
        child = await Child.start("engine", stubs.engine, hear)

        async def load() -> None:
            await are_started.wait()
            child.peer.send(Begin(number, b""))

        loading.append(asyncio.create_task(load()))
        return child

    async def start_front_end(number: int, hear: Handle[Message]) -> Child:
        started.append(number)
        if len(started) == 2:
            are_started.set()
        return await stubs.start_front_end(number, hear)

    async with supervised(start_engine=start_engine, start_front_end=start_front_end) as running:
        assert {(await running.call()).front_end for _ in range(2)} == {1, 2}
    assert started == [1, 2]
    assert children() == []


async def test_a_signal_ends_front_ends_that_wait_for_their_engine() -> None:
    async def start_engine(_number: int, hear: Handle[Message]) -> Child:
        return await Child.start("engine", (sys.executable, STUB, "engine", ""), hear)  # it never begins

    stubs = ChildProcesses((), (sys.executable, STUB, "front-end", ""), b"")

    async def start_front_end(number: int, hear: Handle[Message]) -> Child:
        child = await stubs.start_front_end(number, hear)
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return child

    async with supervised(start_engine=start_engine, start_front_end=start_front_end) as running:
        assert await running.ends() == 0
    assert children() == []


async def test_the_trace_of_several_engines_is_saved_once_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[set[str]] = []

    def join(recorded: Mapping[str, bytes]) -> str:
        assert threading.current_thread() is not threading.main_thread()
        joined.append(set(recorded))
        return join_traces(recorded)

    monkeypatch.setattr(supervisor, "join_traces", join)
    engine, front_end = (sys.executable, STUB, "engine", "traced"), (sys.executable, STUB, "front-end", "")
    two, file = ChildProcesses(engine, front_end, b"", ("a", "b")), tmp_path / "trace.json"
    start: dict[str, Any] = {
        name: getattr(two, name) for name in ("start_engine", "start_front_end", "begin_front_end")
    }
    async with supervised(**start, engines=2, trace_file=file) as running, asyncio.timeout(PATIENCE_S):
        while not file.exists():  # noqa: ASYNC110 (other processes)
            await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.ends() == 0
    assert len(joined) == 1
    assert {"engine a", "engine b"} <= joined[0]
    assert json.loads(file.read_text())["otherData"] == {"left_out": 0}


async def test_a_trace_that_cannot_be_written_changes_no_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with supervised(trace_file=tmp_path) as running:
        os.kill(os.getpid(), signal.SIGINT)
        assert await running.ends() == 130
    assert "trace not written" in caplog.text
    assert children() == []


@pytest.mark.parametrize("kind", ["engine", "front_end"])
async def test_a_child_that_cannot_begin_is_one_sentence(kind: str) -> None:
    fails: dict[str, Any] = {kind: "fail"}
    dies: dict[str, Any] = {kind: "die"}
    with pytest.raises(ConfigError, match="the stub was asked to fail"):
        async with supervised(**fails):
            pass
    assert children() == []
    with pytest.raises(
        ConfigError, match=r"the (engine|front-end-\d) process ended with 3 before it was ready"
    ):
        async with supervised(**dies):
            pass
    assert children() == []


def test_a_process_that_dies_at_once_is_replaced_ever_later() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause_s(pauses[-1], 0.1))
    assert pauses[1:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert next_pause_s(pauses[-1], STEADY_S) == 0.0


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the server gave up."""
    return [it.fields["reason"] for it in caplog.records if it.message == "server gives up"]  # type: ignore[attr-defined]


def cmdline(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 (not a regular file)
        return file.read()

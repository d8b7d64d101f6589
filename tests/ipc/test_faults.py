"""Front ends that die, stop or never read: their resources are released, other calls unaffected."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.engine import Engine
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.sessions import EngineSession
from antiphon.errors import ConfigError, DrainingError, ServerFullError, SessionFailedError
from antiphon.ipc import message_socket, messages
from antiphon.ipc.engine_client import connect
from antiphon.ipc.memory import NO_BELL, MemoryLayout, SharedArena
from antiphon.ipc.message_socket import IS_INLINE
from antiphon.ipc.values import SessionState, Shape
from antiphon.models.sampling import SamplingParameters
from tests.engine.echo import EchoBackend
from tests.engine.fakes import MODEL
from tests.ipc.places import PATIENCE_S, Place, open_call, start_engine
from tests.ipc.places import until as until_seen
from tests.ipc.server_thread import ServerThread
from tests.support.calm import calm

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

POOLS = 2
SLOTS = 8


def until(is_so: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The reasons of all log lines of one event."""
    return [vars(it)["fields"]["reason"] for it in caplog.records if it.getMessage() == event]


class FrontEndProcess:
    """A front end in a process of its own."""

    def __init__(self, fleet: ServerThread, pool: int, **facts: Any) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        facts = {"owner": 100 * pool, "calls": 4, "pace_s": 0.01, "seconds": 3.0, **facts}
        command = [
            sys.executable,
            "-m",
            "tests.ipc.front_end_process",
            str(theirs.fileno()),
            json.dumps(facts),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()])
        theirs.close()
        fleet.add(pool, ours)

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def reap(self) -> None:
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def counts(self) -> dict[str, int]:
        """What it counted, once it has ended well."""
        output, _ = self.process.communicate(timeout=500.0)
        assert self.process.returncode == 0, "a check of its own failed"
        counts: dict[str, int] = json.loads(output.splitlines()[-1])
        return counts


class Host:
    """An engine that echoes, and its front ends."""

    def __init__(self, **settings: int) -> None:
        self.dropped: list[int] = []
        self.registry = CollectorRegistry()
        self.engine = Engine(
            EchoBackend(SLOTS),
            calm(least_tick_ms=0.0, max_queue=SLOTS, **settings),
            metrics=EngineMetrics(self.registry, model=MODEL),
            pools=POOLS,
            wake=EventWake(),
        )
        self.engine.start()
        self.fleet = ServerThread({MODEL: self.engine}, on_dropped=self.dropped.append)

    def front_end(self, pool: int, **facts: Any) -> FrontEndProcess:
        return FrontEndProcess(self.fleet, pool, **facts)

    @property
    def abandoned(self) -> float:
        return self.registry.get_sample_value("antiphon_abandoned_sessions_total", {"model": MODEL}) or 0.0

    def assert_all_is_free(self) -> None:
        leases = self.engine.sessions.leases
        until(lambda: self.engine.health().active == 0, "rows are taken")
        until(lambda: sum(map(len, leases.free)) == leases.count, "leases are taken")
        arena = self.engine.rows.arena
        assert not arena.caller.written.any()
        assert not arena.engine.taken.any()

    def stop(self) -> None:
        assert self.engine.health().alive
        assert self.engine.stop(PATIENCE_S)
        self.fleet.stop()


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    found = Host(**getattr(request, "param", {}))
    yield found
    found.stop()


ROOMY = pytest.mark.parametrize(
    "host", [{"input_frames": 1000, "output_frames": 1000}], indirect=True, ids=["roomy"]
)
"""However long a process waits for the machine, the frames of its calls have room and none is lost."""


def assert_undisturbed(counts: dict[str, int]) -> None:
    assert counts["frames_in"] == counts["frames_out"] == counts["checked"] > 100
    assert counts["lost"] == counts["dropped_in"] == counts["dropped_out"] == 0


def test_no_frame_is_torn_or_anothers_at_full_speed(host: Host) -> None:
    # Of each 50 frames, at least the 16 that may wait are answered.
    speak = {"pace_s": 0.0, "frames": 50, "least": 1000, "seconds": 5.0}
    ends = [host.front_end(pool, **speak) for pool in range(POOLS)]
    for counts in [end.counts() for end in ends]:
        assert counts["checked"] > 1000
        assert counts["calls"] > 20, "leases were used again and again"
        assert counts["lost"] == 0
        assert counts["frames_in"] == counts["frames_out"] + counts["dropped_in"] + counts["dropped_out"]
    until(lambda: sorted(host.dropped) == [0, 1], "both have left")
    for pool in range(POOLS):
        host.fleet.take_back(pool)
    host.assert_all_is_free()


@ROOMY
def test_a_front_end_that_is_killed_leaves_its_rows_and_disturbs_nobody(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    dies, stays = host.front_end(0, seconds=60.0), host.front_end(1, seconds=4.0)
    dies.wait_ready()
    stays.wait_ready()
    dies.signal(signal.SIGKILL)
    until(lambda: host.dropped == [0], "its end is seen")
    until(lambda: host.engine.health().active == 4, "its rows are free")
    dies.reap()
    host.fleet.take_back(0)
    assert host.abandoned == 4
    (reason,) = set(reasons(caplog, "session ends"))
    assert reason.startswith("its front end was dropped: its process has ended")
    assert len(reasons(caplog, "session ends")) == 4
    again = host.front_end(0, seconds=1.0)
    again.wait_ready()
    assert_undisturbed(stays.counts())
    assert_undisturbed(again.counts())
    for pool in range(POOLS):
        host.fleet.take_back(pool)
    host.assert_all_is_free()


@ROOMY
def test_front_ends_killed_at_any_moment_leave_nothing_behind(host: Host) -> None:
    choice = random.Random(5)
    stays = host.front_end(1, seconds=10.0)
    stays.wait_ready()
    for _ in range(8):
        dies = host.front_end(0, pace_s=0.0, frames=5, seconds=60.0)
        if choice.random() < 0.7:
            dies.wait_ready()
        time.sleep(choice.random() * 0.2)
        dies.signal(signal.SIGKILL)
        dies.reap()
        host.fleet.take_back(0)
    assert_undisturbed(stays.counts())
    host.fleet.take_back(1)
    host.assert_all_is_free()


@ROOMY
def test_a_front_end_that_stops_harms_nobody_and_goes_on(host: Host) -> None:
    stops, stays = host.front_end(0, seconds=7.0), host.front_end(1, seconds=6.0)
    stops.wait_ready()
    stays.wait_ready()
    stops.signal(signal.SIGSTOP)
    time.sleep(5.0)
    stops.signal(signal.SIGCONT)
    assert_undisturbed(stays.counts())
    assert stops.counts()["lost"] == 0
    for pool in range(POOLS):
        host.fleet.take_back(pool)
    host.assert_all_is_free()


def test_a_front_end_that_reads_nothing_is_dropped(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.fleet.add(0, ours)
    question = IS_INLINE + messages.REQUESTS.encode(0, messages.Check(0, 1, 0.0))
    theirs.settimeout(0.1)
    end_s = time.monotonic() + PATIENCE_S
    while not host.dropped and time.monotonic() < end_s:
        try:
            theirs.send(question)
        except TimeoutError:
            continue
        except OSError:
            break
    until(lambda: host.dropped == [0], "it is dropped")
    theirs.close()
    assert reasons(caplog, "front end dropped") == ["it reads no messages"]
    host.fleet.take_back(0)
    host.assert_all_is_free()


@ROOMY
def test_nonsense_in_a_front_ends_memory_spoils_its_own_calls_alone(host: Host) -> None:
    spoilt, stays = host.front_end(0, seconds=60.0), host.front_end(1, seconds=3.0)
    spoilt.wait_ready()
    stays.wait_ready()
    arena = host.engine.rows.arena
    assert isinstance(arena, SharedArena)
    slab, choice = arena.slabs[0], np.random.default_rng(0)
    limits = np.iinfo(np.int64)
    for _ in range(200):
        slab.caller[:] = choice.integers(limits.min, limits.max, slab.caller.shape)
        times = arena.blocks["in_marks"][slab.places, :, 1].view(np.float64)
        times[:] = choice.choice([np.nan, np.inf, -np.inf, 1e300])
        host.engine.wake.nudge()
        time.sleep(0.005)
    spoilt.signal(signal.SIGKILL)
    spoilt.reap()
    assert_undisturbed(stays.counts())
    for pool in range(POOLS):
        host.fleet.take_back(pool)
    host.assert_all_is_free()


def test_a_front_end_that_says_nonsense_is_dropped(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    opening = messages.Open("a", 7, SamplingParameters(), 0.0)
    nonsense = [b"\xc1", IS_INLINE + messages.REQUESTS.encode(0, opening), IS_INLINE + b"\x90"]
    for data in nonsense:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host.dropped.clear()
        host.fleet.add(0, ours)
        theirs.send(data)
        until(lambda: host.dropped == [0], "it is dropped")
        theirs.close()
        host.fleet.take_back(0)
    said = reasons(caplog, "front end dropped")
    assert ["neither of the marks" in said[0], said[1], "no message" in said[2]] == [
        True,
        "model 7 of 1",
        True,
    ]
    host.assert_all_is_free()


async def test_a_call_that_ends_before_it_is_seated_has_its_error(host: Host) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.fleet.add(0, theirs)
    port = (await connect(ours))[MODEL]

    def leave_meanwhile(session: EngineSession, wait_s: float) -> None:
        error = DrainingError("the server is shutting down; its queue is closed")
        host.engine.sessions.end(session, error)

    host.engine.sessions.admit = leave_meanwhile  # type: ignore[method-assign]
    async with asyncio.timeout(120.0):
        with pytest.raises(DrainingError, match="its queue is closed"):
            await open_call(Place(port, lambda: None))
    port.client.close()
    until(lambda: host.dropped == [0], "it has left")
    host.fleet.take_back(0)


async def test_a_front_end_whose_messages_were_lost_ends_its_calls_on_both_sides(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_socket, "MAX_WAITING", 8)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    host.fleet.add(0, theirs)
    call = await open_call(Place((await connect(ours))[MODEL], lambda: None))
    with host.fleet.paused():
        for _ in range(5000):
            call.session.set_parameters(SamplingParameters())
        call.session.finish()
    await call.until(lambda session: session.state is SessionState.CLOSED)
    assert "it reads no messages" in str(call.session.error)
    until(lambda: host.dropped == [0], "its end is seen")
    host.fleet.take_back(0)
    host.assert_all_is_free()


async def test_an_engine_that_is_killed_ends_its_calls_with_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = start_engine({"slots": 1}, [theirs])
    theirs.close()
    port = (await connect(ours))[MODEL]
    place, lost = Place(port, lambda: None), list[bool]()

    def changed() -> None:
        if port.client.is_lost:
            lost.append(call.session.state is SessionState.CLOSED)

    port.on_change(changed)
    call, waits = await open_call(place), await open_call(place, wait_s=20.0)
    process.send_signal(signal.SIGSTOP)
    await until_seen(lambda: port.health().stuck_s > 2.0)
    assert not port.health().ready
    assert "has sent nothing for" in port.health().detail
    process.kill()
    process.communicate()
    for it in (call, waits):
        await it.until(lambda session: session.state is SessionState.CLOSED)
        assert "the engine's process has ended" in str(it.session.error)
    assert lost == [True], "told once, after its calls have ended"
    assert not port.health().alive
    for attempt in (open_call(place), port.check_room(0.0)):
        with pytest.raises(SessionFailedError, match="the engine's process has ended"):
            await attempt


async def test_a_front_end_has_no_more_calls_than_its_pool_has_leases() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    process = start_engine({"slots": 40}, [theirs for _, theirs in pairs])
    desks = [(await connect(ours))[MODEL] for ours, _ in pairs]
    first, second = (Place(desk, lambda: None) for desk in desks)
    calls = [await open_call(first) for _ in range(30)]
    with pytest.raises(ServerFullError, match="10 of 40 rows are free, but every place of this front end"):
        await open_call(first)
    waits = await open_call(first, wait_s=20.0)
    others = [await open_call(second) for _ in range(10)]
    assert all(call.session.state is SessionState.ACTIVE for call in others), "who waits is not in their way"
    calls[0].session.close()
    await waits.until(lambda session: session.state is SessionState.ACTIVE)
    process.communicate()
    assert process.returncode == 0
    for _, theirs in pairs:
        theirs.close()
    await waits.until(lambda session: session.state is SessionState.CLOSED)


def test_a_bell_stays_open_for_an_engine_that_is_about_to_ring_it(host: Host) -> None:
    arena = host.engine.rows.arena
    assert isinstance(arena, SharedArena)
    bells = []
    for _ in range(2):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host.fleet.add(0, ours)
        bells.append(arena.slabs[0].bell)
        theirs.close()
        until(lambda: host.dropped == [0], "it is dropped")
        host.dropped.clear()
        host.fleet.take_back(0)
        os.eventfd_write(bells[-1], 1)
        assert arena.slabs[0].bell == NO_BELL
    assert bells[0] == bells[1]


def test_rings_for_which_there_is_no_memory_are_refused_with_their_bytes() -> None:
    plan = MemoryLayout(Shape(2, 2, 4, 4), pools=2, leases=3)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (plan.total_bytes - 1, before[1]))
    try:
        with pytest.raises(ConfigError) as refused:
            SharedArena(plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(refused.value) == (
        f"{plan.total_bytes} bytes for the rings of 6 leases are not available: "
        "[Errno 27] File too large; use fewer slots"
    )
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


def test_a_lease_cleared_while_its_counters_are_shown_stays_clear() -> None:
    arena = SharedArena(MemoryLayout(Shape(2, 2, 4, 4), pools=1, leases=2))
    slab, cleared = arena.slabs[0], threading.Thread(target=arena.clear, args=(0,))

    class Slow(np.ndarray):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            if cleared.ident is None:
                value = value.copy()
                cleared.start()
                cleared.join(0.2)
            super().__setitem__(key, value)

    arena.engine.output_written[0] = 5
    slab.engine = slab.engine.view(Slow)
    arena.publish()
    cleared.join()
    assert not slab.engine[:, 0].any()


def test_no_memory_and_no_descriptor_stays_behind() -> None:
    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    def maps(inode: int) -> int:
        """How often this memory is mapped; other tests may have left some that is collected later."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(line.split()[4] == str(inode) for line in lines if "memfd:antiphon" in line)

    for run in range(2):  # what is loaded once stays
        before = descriptors()
        host = Host()
        arena = host.engine.rows.arena
        assert isinstance(arena, SharedArena)
        memory = os.fstat(arena.descriptor).st_ino
        assert maps(memory) == 1
        dies = host.front_end(0)
        dies.wait_ready()
        dies.signal(signal.SIGKILL)
        dies.reap()
        host.fleet.take_back(0)
        host.stop()
        del host, dies, arena
        gc.collect()
        assert maps(memory) == 0
        assert run == 0 or descriptors() <= before  # what an earlier test left may go meanwhile

"""The end of a front end takes many short turns of the event loop, and the next front end waits for it."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.engine import SETTLE_S, Engine
from antiphon.engine.front_ends import FrontEndServer
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.ipc.engine_client import connect
from tests.engine.echo import EchoBackend
from tests.engine.fakes import MODEL, FakeClock
from tests.ipc.places import PATIENCE_S, Place, open_call, until
from tests.support.calm import calm

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

CALLS = 10
STEP_S = 0.4 * SETTLE_S
A_TURN = 3
"""The steps that begin within ``SETTLE_S``."""


@pytest.fixture
def engine() -> Engine:
    metrics = EngineMetrics(CollectorRegistry(), model=MODEL)
    return Engine(EchoBackend(CALLS), calm(), metrics=metrics, pools=1, wake=EventWake())


async def test_the_calls_of_a_front_end_end_and_its_leases_are_cleared_in_short_turns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.start()
    clock, reported_after = FakeClock(), list[int]()
    loop = asyncio.get_running_loop()
    turn, ended, cleared = 0, Counter[int](), Counter[int]()

    def on_dropped(_: int) -> None:
        reported_after.append(ended.total())

    server = FrontEndServer({MODEL: engine}, loop, on_dropped=on_dropped, clock=clock)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.add(0, theirs)
    port = (await connect(ours))[MODEL]
    for _ in range(CALLS):
        await open_call(Place(port, lambda: None))
    let_go, clear, leases = engine.sessions.let_go, engine.rows.arena.clear, engine.sessions.leases

    def end(*arguments: object) -> None:
        ended[turn] += 1
        clock.advance(STEP_S)
        let_go(*arguments)  # type: ignore[arg-type]

    def wipe(lease: int) -> None:
        cleared[turn] += 1
        clock.advance(STEP_S)
        clear(lease)

    monkeypatch.setattr(engine.sessions, "let_go", end)
    monkeypatch.setattr(engine.rows.arena, "clear", wipe)
    next_turn()
    port.client.close()
    await until(lambda: ended.total() == CALLS)
    assert (reported_after, max(ended.values())) == ([0], A_TURN), "before the first call ends"
    await until(lambda: engine.health().active == 0)

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.take_back(0)
    server.add(0, theirs)
    async with asyncio.timeout(PATIENCE_S):
        port = (await connect(ours))[MODEL]
    assert (cleared.total(), max(cleared.values())) == (leases.count, A_TURN)
    assert sorted(leases.free[0]) == list(range(leases.count)), "all are free before the next front end"
    port.client.close()
    server.stop()
    server.close()
    assert engine.stop(PATIENCE_S)


async def test_a_front_end_that_ends_before_its_turn_is_not_greeted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.prepare()
    clock = FakeClock()
    server = FrontEndServer({MODEL: engine}, asyncio.get_running_loop(), clock=clock)
    monkeypatch.setattr(engine.rows.arena, "clear", lambda _: clock.advance(SETTLE_S))
    server.take_back(0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE_S)
    server.add(0, theirs)
    server.take_back(0)
    assert ours.recv(1) == b"", "its socket is closed"
    server.stop()
    server.close()
    ours.close()

"""The free-rows port: its answers to HAProxy over TCP."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from aiohttp import WSServerHandshakeError
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ConfigError
from antiphon.ipc.health import Health, together
from antiphon.serve.operator.free_rows import MAX_WEIGHT, free_rows_line, free_rows_port
from antiphon.serve.routes.routing import ELSEWHERE
from tests.serve.harness import serving

WELL = Health(True, 0.0, True, False, active=1, queued=0, slots=4, free=3, detail="ok")


async def well() -> Health:
    return WELL


async def ask(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return line


@pytest.mark.parametrize(
    ("health", "line"),
    [
        (WELL, "up 3%"),
        (replace(WELL, ready=False, active=4), "up 0%"),
        (replace(WELL, ready=False), "up 0%"),  # late: rows are free, and nobody gets one
        (replace(WELL, ready=False, draining=True), "stopped #draining: 1 sessions left"),
        (replace(WELL, alive=False, ready=False, detail="lost:\nout of memory"), "down #lost: out of memory"),
        (replace(WELL, stuck_s=12.0, ready=False, detail="a step runs"), "down #a step runs"),
    ],
)
def test_a_worker_says_how_it_is(health: Health, line: str) -> None:
    assert free_rows_line(health) == line


@pytest.mark.parametrize(
    ("stt", "tts", "apart", "as_agent"),
    [(3, 2, "up 5%", "up 2%"), (0, 3, "up 3%", "up 0%"), (1, 0, "up 1%", "up 0%")],
)
def test_an_agents_caller_needs_a_row_of_each_model(stt: int, tts: int, apart: str, as_agent: str) -> None:
    free = {"stt": stt, "tts": tts}
    healths = {name: replace(WELL, ready=rows > 0, free=rows) for name, rows in free.items()}
    assert free_rows_line(together(healths)) == apart
    assert free_rows_line(together(healths, needs_all=True)) == as_agent


@given(st.booleans(), st.booleans(), st.booleans(), st.integers(0, 600), st.integers(1, 600), st.text())
def test_only_words_that_leave_the_operator_in_charge(
    alive: bool, ready: bool, draining: bool, active: int, free: int, detail: str
) -> None:
    line = free_rows_line(Health(alive, 0.0, ready, draining, active, 0, 600, free, detail))
    assert re.fullmatch(r"up \d+%|(stopped|down) #.*", line)
    if line.startswith("up"):
        assert int(line[3:-1]) <= min(MAX_WEIGHT, free)
    assert len(line.splitlines()) == 1


async def test_the_port_answers_whoever_asks_with_what_is_true_now() -> None:
    health = WELL

    async def now() -> Health:
        return health

    async with free_rows_port("127.0.0.1", 0, now) as port:
        assert await asyncio.gather(*(ask(port) for _ in range(20))) == ["up 3%\n"] * 20
        health = replace(WELL, active=2, free=2)
        assert await ask(port) == "up 2%\n"


async def test_a_port_that_is_taken() -> None:
    async with free_rows_port("127.0.0.1", 0, well) as port:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: .*--free-rows-port"):
            async with free_rows_port("127.0.0.1", port, well):
                pass


async def test_a_proxy_with_others_to_ask_is_told_with_a_status() -> None:
    """Extended clients too, and those who would wait: elsewhere there may be a row at once."""
    async with serving(slots=1) as server, server.caller():
        for query in ("ext=1", "ext=1&wait=30", "wait=30", ""):
            with pytest.raises(WSServerHandshakeError) as refusal:
                async with server.call(query, **{ELSEWHERE: "1"}):
                    pass
            assert refusal.value.status == 503
            assert refusal.value.headers is not None
            assert int(refusal.value.headers["Retry-After"]) >= 1
        async with server.call("ext=1&wait=30") as waiting:  # nobody else to ask: it waits here
            assert (await waiting.event("queued")).fields["ahead"] == 0

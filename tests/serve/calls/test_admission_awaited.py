"""Slow admission: clients that leave or are cut off meanwhile keep no row."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from antiphon.audio.wav import streamed_header
from antiphon.errors import ServerFullError
from antiphon.ipc.engine_client import EngineClient
from antiphon.protocol import kyutai
from antiphon.protocol.chat import parse_chat_query
from antiphon.serve.hosting.uploads import MAX_JOBS, Helper
from antiphon.serve.routes.chat import chat_call
from tests.serve.asr_client import transcribing
from tests.serve.harness import Server, serving


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Admission is decided at once, and told when this is set."""
    is_open, begin = asyncio.Event(), EngineClient.begin

    async def told_late(answer: asyncio.Future[None]) -> None:
        await answer
        await is_open.wait()

    def slow(client: EngineClient, *request: Any) -> asyncio.Future[None]:
        return asyncio.ensure_future(told_late(begin(client, *request)))

    monkeypatch.setattr(EngineClient, "begin", slow)
    return is_open


async def has_row(server: Server) -> None:
    await server.eventually(lambda: server.engine.health().active == 1)


async def hang_up(server: Server, asking: AbstractAsyncContextManager[object]) -> None:
    """Ask, and leave once there is a row, before the answer; until the server has seen it."""

    async def ask() -> None:
        async with asking:
            raise AssertionError("answered")

    task = asyncio.create_task(ask())
    await has_row(server)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    handler = server.runner.server
    assert handler is not None
    await server.eventually(lambda: all(it.transport is None for it in handler.connections))


async def test_a_caller_that_hangs_up_while_it_is_admitted_leaves_no_row(gate: asyncio.Event) -> None:
    async with serving(slots=1) as server:
        await hang_up(server, server.call(""))
        gate.set()
        await server.is_empty()


async def test_a_post_whose_sender_leaves_while_it_is_admitted_leaves_no_row(gate: asyncio.Event) -> None:
    async with transcribing(slots=1) as (server, _):
        wav = np.zeros(24_000, np.int16).tobytes()
        await hang_up(server, server.http.post(server.url(kyutai.PATH), data=streamed_header(24_000) + wav))
        gate.set()
        await server.is_empty()


async def test_a_conversation_cancelled_while_it_is_admitted_leaves_no_row(gate: asyncio.Event) -> None:
    async with serving(slots=1) as server:
        (model,) = server.services.models
        request = parse_chat_query({}, defaults=model.defaults, max_wait_s=600.0)
        call = chat_call(server.services, model, request)
        admitting = asyncio.create_task(call.admit())
        await has_row(server)
        admitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admitting
        call.abandon()
        await server.is_empty()


async def test_the_helper_runs_jobs_in_order_and_no_more_wait_than_it_says() -> None:
    helper, order, is_free = Helper(), list[int](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def job(number: int) -> int:
        asyncio.run_coroutine_threadsafe(is_free.wait(), loop).result()
        order.append(number)
        return number

    jobs = [asyncio.create_task(helper.run(job, number)) for number in range(MAX_JOBS)]
    await asyncio.sleep(0)
    with pytest.raises(ServerFullError) as refused:
        await helper.run(job, MAX_JOBS)
    assert str(refused.value) == "64 files wait to be read, which is the most there may be; try again in 5 s"
    is_free.set()
    assert await asyncio.gather(*jobs) == order == list(range(MAX_JOBS))
    assert await helper.run(len, "abc") == 3
    helper.close()

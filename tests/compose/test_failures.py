"""Effects on callers when workers stop, die and return, and when the load balancer reloads."""

from __future__ import annotations

import asyncio
import signal

from tests.compose.callers import Caller, calling, chat, shares, worker_of
from tests.compose.conftest import Start
from tests.support.stack.stack import START_S, Stack, Worker


async def test_a_drain_lets_calls_end_and_sends_newcomers_elsewhere(start: Start) -> None:
    async with start(duplex=2) as stack, calling(stack, 1) as (caller,):
        leaving, (other,) = await worker_of(stack, caller)
        leaving.signal(signal.SIGTERM)
        async with calling(
            stack, 2
        ) as newcomers:  # at once: the load balancer may not have heard of the drain yet
            assert await shares_of(other, stack) == 2
            await caller.hears(5)  # and the call goes on
            await stack.sees("duplex", {other.host: 0})
            assert (await caller.finish()).lost == 0
            assert leaving.process is not None
            assert await leaving.process.ended(START_S) == 0
            assert [(await newcomer.finish()).lost for newcomer in newcomers] == [0, 0]
        # It comes back, and is used again.
        leaving.start()
        await stack.sees("duplex", {leaving.host: 2, other.host: 2})


async def shares_of(worker: Worker, stack: Stack) -> int:
    return (await shares(stack))[stack.workers.index(worker)]


async def test_a_worker_that_is_killed_takes_its_own_calls_and_no_others(start: Start) -> None:
    async with start(duplex=2) as stack, calling(stack, 1) as (victim,):
        killed, (other,) = await worker_of(stack, victim)
        async with calling(stack, 1) as (bystander,):
            assert await shares_of(other, stack) == 1  # the one with more rows free
            killed.kill()
            newcomer = Caller(chat(stack), stack.http)  # at once, before any health check
            await newcomer.hears(3)
            detail = (await victim.result()).record.detail  # whichever of its two halves notices first
            assert detail.startswith(("the server closed with code 1006", "connection lost: "))
            await bystander.hears(5)
            assert (await bystander.finish()).lost == 0
            assert (await newcomer.finish()).lost == 0
        killed.start()
        await stack.sees("duplex", {killed.host: 2, other.host: 2})


async def test_a_reload_of_the_balancer_is_not_heard(start: Start) -> None:
    async with start(duplex=1) as stack, calling(stack, 1) as (caller,):
        await stack.balancer.reload()
        await caller.hears(5)
        await stack.sees("duplex", {"127.0.1.1": 1})  # the new process has found the workers and their rows
        newcomer = Caller(chat(stack), stack.http)
        await newcomer.hears(3)
        await stack.balancer.reload()
        await asyncio.gather(caller.hears(5), newcomer.hears(5))
        assert [(await call.finish()).lost for call in (caller, newcomer)] == [0, 0]


async def test_workers_come_and_go_by_name(start: Start) -> None:
    async with start(duplex=2) as stack:
        first, second = stack.workers
        stack.table["duplex"].remove(second.host)
        await stack.sees("duplex", {first.host: 2})
        stack.table["duplex"].append(second.host)
        await stack.sees("duplex", {first.host: 2, second.host: 2})


async def test_everything_at_once_is_started_again(start: Start) -> None:
    async with start(duplex=1, echo=1) as stack:
        async with calling(stack, 1) as (caller,):
            for worker in stack.workers:
                worker.kill()
            await stack.balancer.stop()
            assert (await caller.result()).record.detail.startswith(("connection lost", "the server closed"))
        refused = await Caller(chat(stack), stack.http).result()
        assert refused.record.detail.startswith("connection lost: Cannot connect to host")
        stack.balancer.start()  # before its workers: it must not need them
        for worker in stack.workers:
            worker.start()
        await stack.is_up()
        for model in ("duplex", "echo"):
            await stack.sees(model, {worker.host: 2 for worker in stack.of(model)})
            async with calling(stack, 1, model) as (caller,):
                assert (await caller.finish()).lost == 0

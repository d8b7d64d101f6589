"""Turns: in order, fair, bounded in time; a failure stays in its conversation."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque

from antiphon.serve.hosting.turns import BUDGET_S, Turns, Waker


def no_fault(error: Exception) -> None:
    raise AssertionError(error)


class Work:
    """A conversation with ``items`` to work off, one a turn."""

    def __init__(self, name: str, ran: list[tuple[str, int]], count: int) -> None:
        self.name, self.ran, self.items = name, ran, deque(range(count))

    def turn(self) -> bool:
        if self.items:
            self.ran.append((self.name, self.items.popleft()))
        return bool(self.items)


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def test_one_with_much_to_do_lets_the_others_in_between() -> None:
    turns, ran = Turns(asyncio.get_running_loop()), list[tuple[str, int]]()
    for work in (Work("busy", ran, 50), Work("modest", ran, 3)):
        Waker(turns, work.turn, no_fault).wake()
    await settle()
    assert len(ran) == 53
    assert ran[:6] == [("busy", 0), ("modest", 0), ("busy", 1), ("modest", 1), ("busy", 2), ("modest", 2)]


async def test_many_wakes_are_one_turn_and_one_during_it_is_another() -> None:
    turns, count = Turns(asyncio.get_running_loop()), 0

    def turn() -> bool:
        nonlocal count
        count += 1
        if count == 1:
            waker.wake()
            waker.wake()
        return False

    waker = Waker(turns, turn, no_fault)
    for _ in range(1000):
        waker.wake()
    await settle()
    assert count == 2


async def test_a_fault_is_told_and_the_others_go_on() -> None:
    turns, ran = Turns(asyncio.get_running_loop()), list[tuple[str, int]]()
    faults: list[Exception] = []
    Waker(turns, lambda: 1 // 0 == 0, faults.append).wake()
    Waker(turns, Work("good", ran, 1).turn, no_fault).wake()
    await settle()
    assert [type(error) for error in faults] == [ZeroDivisionError]
    assert ran == [("good", 0)]
    assert turns.busy_s > 0


async def test_a_closed_lane_takes_no_turn_and_forgets_its_conversation() -> None:
    turns, ran = Turns(asyncio.get_running_loop()), list[tuple[str, int]]()
    work = Work("one", ran, 3)
    waker = Waker(turns, work.turn, no_fault)
    waker.wake()
    waker.close()
    waker.wake()
    await settle()
    assert ran == []
    forgotten = weakref.ref(work)
    del work
    assert forgotten() is None


async def test_turns_of_many_leave_the_loop_to_its_sockets_after_their_budget() -> None:
    """A hundred turns of a millisecond would otherwise keep every socket waiting for a tenth of a second."""
    turns, left = Turns(asyncio.get_running_loop()), 100

    def turn() -> bool:
        nonlocal left
        left -= 1
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        return False

    for _ in range(left):
        Waker(turns, turn, no_fault).wake()
    while left:
        before = left
        await asyncio.sleep(0)
        assert before - left <= BUDGET_S / 0.001 + 1

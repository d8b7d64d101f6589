"""Lanes: turns in order, one at a time, fair between sessions, and never fatal to their worker."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

import pytest

from antiphon.serve.hosting.lanes import Lane, LoopWorker, ThreadWorker, WorkerPool


def no_fault(error: Exception) -> None:
    raise AssertionError(error)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.005)


class Recorder:
    """A session with ``items`` to work off, one a turn; records what ran where."""

    def __init__(self, name: str, ran: list[tuple[str, int]]) -> None:
        self.name = name
        self.items: deque[int] = deque()
        self.ran = ran
        self.is_running = False

    def turn(self) -> bool:
        assert not self.is_running, "two turns of one lane at once"
        self.is_running = True
        if self.items:
            self.ran.append((self.name, self.items.popleft()))
        self.is_running = False
        return bool(self.items)


@pytest.fixture
def worker() -> ThreadWorker:
    return ThreadWorker("test")


def test_a_lane_with_much_to_do_lets_the_others_in_between(worker: ThreadWorker) -> None:
    ran: list[tuple[str, int]] = []
    gate = threading.Event()
    blocker = Lane(worker, lambda: gate.wait(5) and False, no_fault)
    busy, modest = Recorder("busy", ran), Recorder("modest", ran)
    lanes = [Lane(worker, recorder.turn, no_fault) for recorder in (busy, modest)]
    busy.items.extend(range(50))
    modest.items.extend(range(3))
    blocker.wake()
    for lane in lanes:
        lane.wake()
    gate.set()
    wait_for(lambda: len(ran) == 53)
    worker.stop(5)
    assert ran[:6] == [("busy", 0), ("modest", 0), ("busy", 1), ("modest", 1), ("busy", 2), ("modest", 2)]


def test_many_wakes_are_one_turn_and_none_is_lost(worker: ThreadWorker) -> None:
    turns = 0
    is_under_way, gate = threading.Event(), threading.Event()

    def turn() -> bool:
        nonlocal turns
        turns += 1
        is_under_way.set()
        gate.wait()
        return False

    lane = Lane(worker, turn, no_fault)
    lane.wake()
    is_under_way.wait()
    for _ in range(1000):
        lane.wake()
    gate.set()
    worker.stop(5)
    assert turns == 2


def test_wakes_from_many_threads_keep_the_order_of_the_work(worker: ThreadWorker) -> None:
    ran: list[tuple[str, int]] = []
    recorder = Recorder("one", ran)
    lane = Lane(worker, recorder.turn, no_fault)
    lock = threading.Lock()
    count = iter(range(2000))

    def put() -> None:
        for _ in range(500):
            with lock:
                recorder.items.append(next(count))
            lane.wake()

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: len(ran) == 2000)
    worker.stop(5)
    assert [item for _, item in ran] == list(range(2000))


def test_a_fault_is_told_and_the_worker_goes_on(worker: ThreadWorker) -> None:
    faults: list[Exception] = []
    ran: list[tuple[str, int]] = []
    recorder = Recorder("good", ran)
    recorder.items.append(1)
    broken = Lane(worker, lambda: 1 // 0 == 0, faults.append)
    broken.wake()
    Lane(worker, recorder.turn, no_fault).wake()
    worker.stop(5)
    assert [type(error) for error in faults] == [ZeroDivisionError]
    assert ran == [("good", 1)]
    assert worker.busy_s > 0


def test_a_closed_lane_takes_one_last_turn_and_forgets_its_session(worker: ThreadWorker) -> None:
    ran: list[tuple[str, int]] = []
    recorder = Recorder("one", ran)
    recorder.items.extend(range(3))
    lane = Lane(worker, recorder.turn, no_fault)
    lane.close()
    lane.wake()
    worker.stop(5)
    assert ran == [("one", 0)]
    assert worker.lanes == 0
    forgotten = weakref.ref(recorder)
    del recorder
    assert forgotten() is None


async def test_the_loop_runs_lanes_woken_from_threads_and_from_one_another() -> None:
    worker = LoopWorker(asyncio.get_running_loop())
    ran: list[str] = []
    faults: list[Exception] = []

    def second_turn() -> bool:
        ran.append("second")
        return False

    second = Lane(worker, second_turn, no_fault)

    def first_turn() -> bool:
        ran.append("first")
        second.wake()
        return False

    def broken_turn() -> bool:
        raise ValueError

    first = Lane(worker, first_turn, no_fault)
    await asyncio.to_thread(Lane(worker, broken_turn, faults.append).wake)
    await asyncio.to_thread(first.wake)
    await asyncio.sleep(0.05)
    assert ran == ["first", "second"]
    assert len(faults) == 1
    first.wake()
    await asyncio.sleep(0.05)
    assert ran == ["first", "second"] * 2


async def test_a_lane_that_always_has_more_leaves_the_loop_time() -> None:
    worker = LoopWorker(asyncio.get_running_loop())
    turns = 0

    def turn() -> bool:
        nonlocal turns
        turns += 1
        return turns < 10_000

    Lane(worker, turn, no_fault).wake()
    for _ in range(20):
        await asyncio.sleep(0)
    assert 5 < turns < 200
    turns = 10_000


def test_waking_after_the_loop_is_closed_is_harmless() -> None:
    loop = asyncio.new_event_loop()
    lane = Lane(LoopWorker(loop), lambda: False, no_fault)
    loop.close()
    lane.wake()


async def test_sessions_are_spread_over_the_threads() -> None:
    pool = WorkerPool(2, asyncio.get_running_loop())
    lanes = [pool.thread_lane(lambda: False, no_fault) for _ in range(6)]
    assert [worker.lanes for worker in pool.threads] == [3, 3]
    for lane in lanes[::2]:
        lane.close()
    for _ in range(3):
        pool.thread_lane(lambda: False, no_fault)
    assert [worker.lanes for worker in pool.threads] == [3, 3]
    pool.close()

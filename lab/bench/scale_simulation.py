"""Workers that start, serve, drain and leave under a day of callers: a simulation of discrete events.

It holds to what the stack does: a caller gets a row of the serving worker with the most free rows, waits in a
bounded queue for a bounded time where none is free, and is refused otherwise; an autoscaler reads a number
every few seconds; a worker takes callers only once it has started, and leaves when its last call has ended.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

ScaleRule = Callable[[int, int], int]
"""Workers wanted for so many callers (served and queued) and so many rows a worker."""


def share_free(share: float) -> ScaleRule:
    """As many workers as leave a share of all rows free."""
    return lambda callers, rows: math.ceil(callers / (1 - share) / rows)


def root_free(roots: float) -> ScaleRule:
    """As many workers as leave ``roots`` times the square root of the callers free."""
    return lambda callers, rows: math.ceil((callers + roots * math.sqrt(callers)) / rows)


@dataclass(frozen=True)
class ScaledFleet:
    """Sizes and times of the workers, and of what scales them."""

    rule: ScaleRule
    start_s: float
    rows: int = 16
    fewest: int = 1
    most: int = 100
    queue: int = 8
    patience_s: float = 20.0
    look_every_s: float = 15.0
    settle_s: float = 600.0
    step_down_s: float = 300.0


@dataclass
class SimulatedWorker:
    """One worker; ``ready`` once it has started."""

    ready: bool = False
    draining: bool = False
    calls: int = 0


@dataclass
class DayOutcome:
    """What became of the callers, and how many seconds of rows were paid for and used."""

    arrived: int = 0
    served: int = 0
    queued: int = 0
    refused: int = 0
    waited_s: list[float] = field(default_factory=list)
    paid_row_s: float = 0.0
    used_row_s: float = 0.0
    most_workers: int = 0

    @property
    def refused_share(self) -> float:
        """Of all callers."""
        return self.refused / self.arrived if self.arrived else 0.0

    @property
    def queued_share(self) -> float:
        """Of all callers, those that waited for a row and got one."""
        return self.queued / self.arrived if self.arrived else 0.0

    @property
    def idle_share(self) -> float:
        """Of all rows that were paid for, by time."""
        return 1 - self.used_row_s / self.paid_row_s if self.paid_row_s else 0.0


class DaySimulation:
    """One day; events are (time, order, what is done then)."""

    def __init__(self, fleet: ScaledFleet, callers: Iterable[tuple[float, float]], end_s: float) -> None:
        self.outcome = DayOutcome()
        self._fleet = fleet
        self._callers = iter(callers)
        self._end_s = end_s
        self._now_s = 0.0
        self._busy = 0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._workers = [SimulatedWorker(ready=True) for _ in range(fleet.fewest)]
        self._queue: deque[tuple[float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()
        self._stepped_down_s = -math.inf

    def run(self) -> DayOutcome:
        """Until the last call has ended; rows are counted until ``end_s``."""
        self._next_caller()
        self._at(0.0, self._look)
        while self._events:
            at_s, _, act = heapq.heappop(self._events)
            self._count_rows(at_s)
            self._now_s = at_s
            act()
        self._count_rows(self._end_s)
        return self.outcome

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    def _count_rows(self, until_s: float) -> None:
        passed_s = min(until_s, self._end_s) - self._now_s
        if passed_s > 0:
            self.outcome.paid_row_s += passed_s * len(self._workers) * self._fleet.rows
            self.outcome.used_row_s += passed_s * self._busy

    def _next_caller(self) -> None:
        found = next(self._callers, None)
        if found is not None:
            at_s, length_s = found
            self._at(at_s, lambda: self._arrive(length_s))

    def _arrive(self, length_s: float) -> None:
        self._next_caller()
        self.outcome.arrived += 1
        if self._serve(length_s):
            return
        serving = sum(worker.ready and not worker.draining for worker in self._workers)
        if len(self._queue) >= self._fleet.queue * max(1, serving):
            self.outcome.refused += 1
            return
        entry = (self._now_s, length_s)
        self._queue.append(entry)
        self._at(self._now_s + self._fleet.patience_s, lambda: self._give_up(entry))

    def _serve(self, length_s: float) -> bool:
        """Begin a call on the serving worker with the most free rows; False where none has one."""
        serving = [worker for worker in self._workers if worker.ready and not worker.draining]
        worker = min(serving, key=lambda each: each.calls, default=None)
        if worker is None or worker.calls >= self._fleet.rows:
            return False
        worker.calls += 1
        self._busy += 1
        self.outcome.served += 1
        self._at(self._now_s + length_s, lambda: self._end(worker))
        return True

    def _end(self, worker: SimulatedWorker) -> None:
        worker.calls -= 1
        self._busy -= 1
        if worker.draining and not worker.calls:
            self._workers.remove(worker)
        self._serve_queue()

    def _serve_queue(self) -> None:
        while self._queue and self._serve(self._queue[0][1]):
            since_s, _ = self._queue.popleft()
            self.outcome.queued += 1
            self.outcome.waited_s.append(self._now_s - since_s)

    def _give_up(self, entry: tuple[float, float]) -> None:
        if entry in self._queue:
            self._queue.remove(entry)
            self.outcome.refused += 1

    def _look(self) -> None:
        """What the autoscaler does: up at once, down slowly and one at a time."""
        fleet = self._fleet
        if self._now_s + fleet.look_every_s < self._end_s:
            self._at(self._now_s + fleet.look_every_s, self._look)
        callers = self._busy + len(self._queue)
        wanted = min(fleet.most, max(fleet.fewest, fleet.rule(callers, fleet.rows)))
        self._wanted.append((self._now_s, wanted))
        while self._wanted[0][0] < self._now_s - fleet.settle_s:
            self._wanted.popleft()
        staying = [worker for worker in self._workers if not worker.draining]
        for _ in range(wanted - len(staying)):
            self._start()
        lately = max(number for _, number in self._wanted)
        if lately < len(staying) and self._now_s - self._stepped_down_s >= fleet.step_down_s:
            self._stepped_down_s = self._now_s
            self._drain(min(staying, key=lambda each: (each.ready, each.calls)))
        self.outcome.most_workers = max(self.outcome.most_workers, len(self._workers))

    def _start(self) -> None:
        worker = SimulatedWorker()
        self._workers.append(worker)
        self._at(self._now_s + self._fleet.start_s, lambda: self._ready(worker))

    def _ready(self, worker: SimulatedWorker) -> None:
        worker.ready = True
        self._serve_queue()

    def _drain(self, worker: SimulatedWorker) -> None:
        worker.draining = True
        if not worker.calls:
            self._workers.remove(worker)

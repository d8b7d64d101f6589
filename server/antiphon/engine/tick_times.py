"""Computes how many calls a machine answers in time, from measured ticks and the cores that sockets take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from antiphon.backends.base import Backend, IntArray, Resizable, StepInputs
from antiphon.backends.stopwatch import StepClock

LOOP_SHARE: Final = 0.85
"""The most of a core that an event loop may use for calls: one process held 112 calls at 0.88, and not 128
(docs/benchmarks/server.md).
"""

BESIDE_CALLS: Final = 1.3
"""A tick's time on a CPU during calls, in multiples of the shortest measured one without: sockets share
caches and, in one process, the interpreter, and a shared machine is not always equally fast. With 1.1, p99
was above 80 ms in four of five minutes of ``tiny``; with 1.25 in one of five, with 1.3 in none.
"""

BESIDE_MODELS: Final = 1.1
"""The same for several models: the rule already counts all their ticks at once, which is rare."""

UNTIMED_STEPS: Final = 2
TIMED_STEPS: Final = 5
CPU_STEPS: Final = 3
"""All steps on a CPU: processor time varies less than a device's time, and the slower first step is not the
minimum."""

GROWTH: Final = 8
"""Each timed tick has at most this many times the rows of the one before: times are nearly on a line."""

AGED_FRAMES: Final = 250
"""Rows are timed with full contexts. A codec's is full after these frames: Mimi looks back over 125."""


@dataclass(frozen=True, slots=True)
class TickTime:
    """A measurement: a tick over ``rows`` rows, all advancing, took ``seconds``."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The share of this machine's cores that calls take outside of the model.

    ``call_s`` and ``caller_s`` are the processor seconds of a frame of one call, in the server and in a
    caller on the same machine. ``loops`` event loops serve all calls. ``cores`` can be a fraction: a CPU
    quota of ``cores`` times ``period_s`` in each ``period_s``.
    """

    call_s: float = 0.0
    caller_s: float = 0.0
    loops: float = float("inf")
    cores: float = float("inf")
    period_s: float = 0.1

    def slowdown(
        self, calls: int, frame_s: float, threads: int, models: int = 1, *, splits_rows: bool = False
    ) -> float:
        """The ratio of a tick's time during ``calls`` calls of each model to its time without them.

        A tick computes on ``threads`` threads; with 0 it computes on a device, which one thread feeds. A
        thread of a tick that waits for its core stalls the tick's other threads, so each processor second of
        a socket costs a tick of T threads T processor seconds; a single one if ``splits_rows``
        (:class:`antiphon.backends.base.BackendInfo`). If all ticks have more threads than there are cores, a
        socket stalls all of them; a tick with more threads than cores takes as many times longer.
        Ticks of several models take turns, as on a device. Infinite if the event loops or the cores are not
        enough. A quota below one core counts as one core: :class:`TickRule` counts its pauses.
        """
        cores = max(1.0, self.cores)
        wanted = max(1, threads) * models
        stalled = cores if wanted > cores else 1 if splits_rows else max(1, threads)
        taken = min(wanted, cores)
        loops = models * calls * self.call_s / frame_s
        outside = models * calls * (self.call_s + self.caller_s) / frame_s
        excess = max(0.0, outside - (cores - taken)) * stalled / taken
        if loops > LOOP_SHARE * self.loops or excess >= 1:
            return float("inf")
        beside = BESIDE_CALLS if models == 1 else BESIDE_MODELS
        shared = beside if threads and outside else 1.0
        return shared * models * max(1.0, threads / cores) / (1 - excess)


@dataclass(frozen=True, slots=True)
class TickRule:
    """The condition for calls to be answered in time: two ticks fit into a frame of ``frame_s``, less
    ``reserve_fraction``.

    ``models`` models share the machine, each with ticks on ``threads`` threads; ``splits_rows`` is as in
    :meth:`HostLoad.slowdown`. ``is_packed``: a tick computes only the rows that are ready.
    """

    frame_s: float
    reserve_fraction: float
    load: HostLoad = field(default_factory=HostLoad)
    threads: int = 0
    models: int = 1
    is_packed: bool = True
    splits_rows: bool = False

    @property
    def limit_s(self) -> float:
        """The longest tick that keeps frames on time, without other models and without calls:
        :func:`tick_limit_s`.
        """
        return tick_limit_s(self.frame_s, reserve_fraction=self.reserve_fraction)

    def slowdown(self, calls: int) -> float:
        """The ratio of a tick's time during ``calls`` calls of each model to its time without them."""
        return self.load.slowdown(
            calls, self.frame_s, self.threads, self.models, splits_rows=self.splits_rows
        )

    def calls(self, ticks: Sequence[TickTime], at_most: int) -> int:
        """The largest number of calls that are answered in time, 1 to ``at_most``, from measured ticks of
        ascending row counts.
        """
        within = (calls for calls in range(at_most, 1, -1) if self._is_in_quota(ticks, calls))
        return next((calls for calls in within if calls <= self._answered(ticks, calls)), 1)

    def _is_in_quota(self, ticks: Sequence[TickTime], calls: int) -> bool:
        """Whether a CPU quota below one core suffices for a frame of each call.

        The kernel stops a process that has used its quota until the next period. Either the quota suffices
        for all frames of a period, even if each has a tick of its own: then there is no pause. Or a tick of
        all rows and their sockets ends in time after the pauses.
        """
        load = self.load
        if load.cores >= 1:
            return True
        quota_s, sockets_s = load.cores * load.period_s, calls * (load.call_s + load.caller_s)
        # A frame may wait for a whole tick of all rows before its own, unless a tick takes the ready rows.
        rows, turns = (1, 1) if self.is_packed else (calls, 2)
        threads = max(1, self.threads)
        apart_s = self.models * (calls * threads * tick_s(ticks, rows) + sockets_s)
        together_s = self.models * (turns * threads * tick_s(ticks, calls) + sockets_s)
        paused_s = math.ceil(together_s / quota_s) * (load.period_s - quota_s)
        frames = int(load.period_s / self.frame_s) + 1
        return frames * apart_s <= quota_s or paused_s + together_s <= 2 * self.limit_s

    def _answered(self, ticks: Sequence[TickTime], calls: int) -> int:
        """The calls answered in time by ticks that are as slow as during ``calls`` calls."""
        slowdown = self.slowdown(calls)
        if ticks[0].seconds * slowdown > self.limit_s:
            return 1
        rows = rows_in_time(ticks, self.limit_s / slowdown)
        return calls_in_time(rows, reserve_fraction=self.reserve_fraction) if self.is_packed else rows

    @property
    def words(self) -> str:
        """The assumed load of a call, for operators; "" without one."""
        load = self.load
        if not load.call_s:
            return ""
        quota = f"; the CPU quota is {load.cores:.2f} cores" if load.cores < 1 else ""
        return (
            f"slots = auto counts {1000 * load.call_s:.2f} ms of CPU per frame for a call's socket and Opus, "
            f"and {1000 * load.caller_s:.2f} ms for a caller on this machine{quota}"
        )


def tick_limit_s(frame_s: float, *, reserve_fraction: float, models: int = 1) -> float:
    """The longest tick that keeps frames on time.

    A frame may arrive just after a tick began: it waits for the end of this tick, and then for its own tick.
    Two ticks must therefore fit into a frame's length, less the reserve for decoding, encoding and sending.
    If ``models`` models share a device, each tick takes ``models`` times as long.
    """
    return frame_s * (1 - reserve_fraction) / 2 / models


def calls_in_time(rows: int, *, reserve_fraction: float) -> int:
    """The number of calls at random phases that are answered in time, if a tick of ``rows`` rows takes
    :func:`tick_limit_s`.

    A tick takes the frames that were completed during the tick before it. With N calls, ticks of T seconds
    therefore have N T / frame rows, and at the limit T is ``(1 - reserve_fraction) / 2`` of a frame. Calls of
    equal phase are ready together and do not wait for another tick; their tick takes less than a frame.
    """
    return int(rows * 2 / (1 - reserve_fraction))


def tick_s(ticks: Sequence[TickTime], rows: int) -> float:
    """The time of a tick over ``rows`` rows, from measured ticks of ascending row counts: on the line through
    the two measurements around it, or through the last two.
    """
    before = TickTime(0, 0.0)
    for tick in ticks:
        if tick.rows >= rows or tick is ticks[-1]:
            break
        before = tick
    more_s = (tick.seconds - before.seconds) * (rows - before.rows) / (tick.rows - before.rows)
    return max(0.0, before.seconds + more_s)


def rows_in_time(ticks: Sequence[TickTime], limit_s: float) -> int:
    """The most rows whose tick takes at most ``limit_s``, from measured ticks of ascending row counts.

    Between two measured row counts the tick is interpolated; the result is never above the largest one. At
    least 1: a machine too slow for one row still serves it, late.
    """
    rows, rows_s = 1, 0.0
    for tick in ticks:
        if tick.seconds > limit_s:
            share = (limit_s - rows_s) / (tick.seconds - rows_s)
            return max(rows, int(rows + share * (tick.rows - rows) + 1e-9))  # 32, not 31.999...
        rows, rows_s = tick.rows, tick.seconds
    return rows


def next_rows(ticks: Sequence[TickTime], limit_s: float) -> int:
    """The number of ready rows to time next, at most ``GROWTH`` times the last one.

    After one tick, or while ticks do not take longer, it is the number that is in time even if a tick's time
    grows in proportion to its rows; at least 2. Otherwise, it is the number where the line through the first
    and the last tick reaches the limit. A quarter is added to the distance, so that one such number is mostly
    enough.
    """
    first, last = ticks[0], ticks[-1]
    gained_s = last.seconds - first.seconds
    if gained_s > 0:
        more = 1.25 * (limit_s - last.seconds) * (last.rows - first.rows) / gained_s
        return last.rows + min((GROWTH - 1) * last.rows, int(more) + 1)
    in_proportion = min(GROWTH, limit_s / last.seconds) if last.seconds else GROWTH
    return last.rows * max(2, int(in_proportion))


def age(backend: Backend) -> None:
    """Fill the contexts of all rows; their time is that of long calls.

    The rows hold noise afterwards; every session resets its row before its first frame.
    """
    lm = backend.info.spec.lm
    if isinstance(backend, Resizable):
        backend.age(AGED_FRAMES if lm is None else max(AGED_FRAMES, lm.context))


def ready_among(calls: int, rows: int) -> IntArray:
    """Draw ``rows`` ready rows, int32, ascending, from the rows of ``calls`` calls; the draw is always the
    same.
    """
    drawn = np.random.default_rng(0).choice(max(rows, calls), rows, replace=False)
    return np.sort(drawn).astype(np.int32)


def measure_tick(backend: Backend, rows: int, clock: StepClock, calls: int) -> TickTime:
    """Time the tick of an aged backend over ``rows`` ready rows, drawn once from the rows of ``calls`` calls:
    a backend may need more time for rows that are apart.
    """
    threads = backend.info.cpu_threads
    untimed, timed = (0, CPU_STEPS) if threads else (UNTIMED_STEPS, TIMED_STEPS)
    noise = np.random.default_rng(0).standard_normal((rows, backend.info.spec.frame_samples), np.float32)
    ready = ready_among(min(calls, backend.info.slots), rows)
    inputs = StepInputs(ready, np.zeros(rows, np.bool_), 0.1 * noise)
    seconds = [clock.seconds(partial(backend.step, inputs), threads) for _ in range(untimed + timed)]
    # The minimum: a disturbance at the start must not reduce the server's slots for its whole life.
    return TickTime(rows, min(seconds[untimed:]))

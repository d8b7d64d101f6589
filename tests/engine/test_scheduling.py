"""Simulated alternatives to ticks of all ready rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from antiphon.engine.tick_times import TickTime, calls_in_time, rows_in_time, tick_limit_s

FRAME_MS = 80.0
BUCKETS = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256])
SEEDS = (1, 2, 3)
RUN_MS, SETTLING_MS = 12_000.0, 2_000.0


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a tick: fixed, for each row of its bucket, and for each row that is ready."""

    fixed: float
    bucket_row: float
    ready_row: float

    def tick(self, ready: int, up_to: int) -> float:
        bucket = int(BUCKETS[np.searchsorted(BUCKETS, up_to)])
        return self.fixed + self.bucket_row * bucket + self.ready_row * ready


@dataclass(frozen=True)
class Policy:
    """Which rows a tick runs and when: ready ones, or a prefix; ``limit`` the oldest; after ``wait_ms``.

    It begins at least ``least_ms`` after the last one began.
    """

    is_prefix: bool = False
    limit: int = 10_000
    wait_ms: float = 0.0
    least_ms: float = 0.0


GPU = Cost(7.5, 0.09, 0.235)
"""A 7B duplex model on an H200, full contexts."""

CPU = Cost(2.0, 0.0, 1.6)
"""The embedded model: nearly all of a tick is its rows."""

LIGHT = Cost(1.0, 0.0, 0.005)
"""A model that costs hardly more than the host does: a codec on a GPU."""

ALL = Policy()
PREFIX = Policy(is_prefix=True)


def latencies(calls: int, cost: Cost, policy: Policy, seed: int) -> tuple[float, float]:
    """p50 and p99 of frame latency in milliseconds; the calls' phases are random."""
    complete = np.random.default_rng(seed).uniform(0.0, FRAME_MS, calls)  # of each call's oldest frame
    now, found = 0.0, []
    while now < RUN_MS:
        oldest = float(complete.min())
        if now < oldest + policy.wait_ms:
            now = min(oldest + policy.wait_ms, max(now, float(complete.max())))  # or until all are there
        ready = np.flatnonzero(complete <= now)
        if ready.size > policy.limit:
            ready = ready[np.argpartition(complete[ready], policy.limit)[: policy.limit]]
        began = now
        now += cost.tick(ready.size, int(ready.max()) + 1 if policy.is_prefix else ready.size)
        if now > SETTLING_MS:
            found.append(now - complete[ready])
        complete[ready] += FRAME_MS
        now = max(now, began + policy.least_ms)
    p50, p99 = np.percentile(np.concatenate(found), [50, 99])
    return float(p50), float(p99)


def mean(calls: int, cost: Cost, policy: Policy) -> tuple[float, float]:
    runs = np.array([latencies(calls, cost, policy, seed) for seed in SEEDS]).mean(axis=0)
    return float(runs[0]), float(runs[1])


@pytest.mark.parametrize(
    ("calls", "prefix", "ready"),
    [
        (64, (24, 33), (16, 22)),
        (96, (34, 45), (19, 27)),
        (128, (46, 61), (24, 33)),
        (144, (64, 86), (30, 41)),
    ],
)
def test_all_ready_rows_take_half_of_a_prefix(
    calls: int, prefix: tuple[int, int], ready: tuple[int, int]
) -> None:
    """p50 and p99 in ms; decision 0022 has most of them."""
    assert mean(calls, GPU, PREFIX) == pytest.approx(prefix, abs=1)
    assert mean(calls, GPU, ALL) == pytest.approx(ready, abs=1)


@pytest.mark.parametrize(("cost", "calls"), [(GPU, 32), (GPU, 128), (CPU, 8), (CPU, 32)])
def test_neither_a_limit_nor_waiting_for_company_beats_all_ready_rows(cost: Cost, calls: int) -> None:
    _, best_ms = mean(calls, cost, ALL)
    for policy in (
        *(Policy(limit=max(1, int(calls * part))) for part in (0.1, 0.2, 0.4)),
        *(Policy(wait_ms=wait_ms) for wait_ms in (2.0, 5.0, 10.0, 20.0)),
    ):
        assert mean(calls, cost, policy)[1] > 0.95 * best_ms, policy
    assert mean(calls, cost, Policy(wait_ms=20.0))[1] > 1.2 * best_ms


@pytest.mark.parametrize(("least_ms", "light"), [(15.0, (9, 16)), (20.0, (12, 21))])
def test_short_ticks_that_come_less_often_stay_within_a_third_of_a_frame(
    least_ms: float, light: tuple[int, int]
) -> None:
    """p50 and p99 in ms; ticks that are longer anyway stay as they are."""
    policy = Policy(least_ms=least_ms)
    assert mean(512, LIGHT, policy) == pytest.approx(light, abs=1)
    assert mean(192, GPU, policy) == pytest.approx(mean(192, GPU, ALL), rel=0.01)


def steady_tick_s(*, fixed_s: float, row_s: float, calls: int, frame_s: float) -> float:
    """The length that ticks settle at, of N calls at random phases; infinite where they keep growing.

    A tick of A + b m seconds for m ready rows takes the frames that became whole during the one before. Ticks
    of T seconds meet m = N T / frame of them, so T = A / (1 - b N / frame). A frame's latency lies between T
    and 2 T.
    """
    share = row_s * calls / frame_s
    return fixed_s / (1 - share) if share < 1 else float("inf")


def test_the_steady_state_says_what_the_simulation_finds() -> None:
    cost = Cost(10.4, 0.0, 0.235)
    for calls in (64, 128, 192):
        tick_ms = 1000 * steady_tick_s(fixed_s=0.0104, row_s=0.000235, calls=calls, frame_s=0.08)
        p50, p99 = mean(calls, cost, ALL)
        assert (p50, p99) == pytest.approx((1.5 * tick_ms, 2 * tick_ms), rel=0.08)
    assert steady_tick_s(fixed_s=0.0104, row_s=0.000235, calls=341, frame_s=0.08) == float("inf")


def test_the_calls_that_fit_have_ticks_at_the_limit() -> None:
    fixed_s, row_s, reserve = 0.0104, 0.000235, 0.2
    limit_s = tick_limit_s(0.08, reserve_fraction=reserve)
    ticks = [TickTime(rows, fixed_s + row_s * rows) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    calls = calls_in_time(rows_in_time(ticks, limit_s), reserve_fraction=reserve)
    tick_s = steady_tick_s(fixed_s=fixed_s, row_s=row_s, calls=calls, frame_s=0.08)
    assert tick_s <= limit_s
    more_s = steady_tick_s(fixed_s=fixed_s, row_s=row_s, calls=calls + 3, frame_s=0.08)
    assert more_s > limit_s, "a ready row is two and a half calls here"

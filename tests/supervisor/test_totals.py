"""Metrics of several processes as one exposition."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from antiphon.supervisor.answers import Totals, read_registry


def said(frames: int, lag_s: float, seconds: float) -> bytes:
    registry = CollectorRegistry()
    Counter("frames", "Frames.", ("model",), registry=registry).labels("a").inc(frames)
    Gauge("sockets", "Sockets.", registry=registry).set(frames)
    Gauge("antiphon_loop_lag_seconds", "Lag.", registry=registry).set(lag_s)
    Histogram("wait_seconds", "Wait.", registry=registry, buckets=(0.1, 1.0)).observe(seconds)
    return read_registry(registry)


def sample(totals: Totals, name: str) -> float:
    lines = [line.split() for line in totals.text().decode().splitlines() if line.startswith(name)]
    assert len(lines) == 1
    return float(lines[0][1])


def test_counters_histograms_and_gauges_are_joined_by_their_meaning() -> None:
    totals = Totals()
    totals.store("one", said(3, 0.5, 0.05))
    totals.store("two", said(4, 0.2, 0.5))
    assert sample(totals, 'frames_total{model="a"}') == 7
    assert sample(totals, 'wait_seconds_bucket{le="0.1"}') == 1
    assert sample(totals, 'wait_seconds_bucket{le="1.0"}') == 2
    assert sample(totals, "wait_seconds_count") == 2
    assert sample(totals, "sockets") == 7
    assert sample(totals, "antiphon_loop_lag_seconds") == 0.5


def test_the_counters_of_the_dead_stay_and_their_gauges_go() -> None:
    totals = Totals()
    totals.store("one", said(3, 0.5, 0.05))
    totals.store("two", said(4, 0.2, 0.5))
    totals.ended("two")
    assert sample(totals, "frames_total") == 7
    assert sample(totals, "sockets") == 3
    totals.store("two", said(1, 0.1, 0.5))  # its successor
    totals.ended("two")
    assert sample(totals, "frames_total") == 8
    assert sample(totals, "wait_seconds_count") == 3

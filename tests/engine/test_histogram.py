"""The array histogram gives the same scrape as prometheus_client's."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from antiphon.engine.metrics import ArrayHistogram, ArrayHistogramFamily

BOUNDS = (0.001, 0.08, 1, 2.5)
VALUES = st.one_of(st.sampled_from([0.0, *map(float, BOUNDS), 1e9]), st.floats(0, 4))


def exposition(registry: CollectorRegistry) -> str:
    text = generate_latest(registry).decode()
    return re.sub(r"(_created\S*) \S+", r"\1 then", text)


@given(st.lists(st.lists(VALUES, max_size=20), max_size=5))
def test_it_is_written_as_the_librarys_own(batches: list[list[float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    family = ArrayHistogramFamily("a_seconds", "Some time.", ("model",), buckets=BOUNDS, registry=ours)
    other = Histogram("a_seconds", "Some time.", ("model",), buckets=BOUNDS, registry=theirs)
    for number, batch in enumerate(batches):
        model = f"m{number % 2}"
        family.labels(model).observe_many(np.array(batch))
        for value in batch:
            family.labels(model).observe(value)
            other.labels(model).observe(value)
            other.labels(model).observe(value)
        other.labels(model)
    sums = re.compile(r"(_sum\S*) (\S+)")
    assert sums.sub(r"\1", exposition(ours)) == sums.sub(r"\1", exposition(theirs))
    found = [float(it[1]) for it in sums.findall(exposition(ours))]
    assert found == pytest.approx([float(it[1]) for it in sums.findall(exposition(theirs))])


def test_two_of_one_name_are_refused_and_one_can_be_asked_for() -> None:
    registry = CollectorRegistry()
    ArrayHistogramFamily("a_seconds", "Some time.", ("model",), buckets=BOUNDS, registry=registry).labels("m")
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Histogram("a_seconds", "Some time.", ("model",), registry=registry)
    asked = registry.restricted_registry(["a_seconds_count"])
    assert [sample.name for metric in asked.collect() for sample in metric.samples] == ["a_seconds_count"]


def test_no_observation_of_several_threads_is_lost() -> None:
    histogram = ArrayHistogram(BOUNDS)

    def observe() -> None:
        for _ in range(2000):
            histogram.observe_many(np.array([0.5, 3.0]))
            histogram.observe(0.01)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buckets, total = histogram.read()
    assert [count for _, count in buckets] == [0, 8000, 16000, 16000, 24000]
    assert total == pytest.approx(8000 * 3.51)

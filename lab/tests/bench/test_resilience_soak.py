"""The slope of memory and its interval, the whole soak once for seconds, and messages made of others."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.bench.hostile_messages import mutated
from lab.bench.resilience_soak import soak
from lab.bench.soak import Sample, plot, slope_of


def samples(mib: NDArray[np.float64]) -> list[Sample]:
    return [Sample(float(at_s), float(each), 10, 3, 20.0, 0, 5.0) for at_s, each in enumerate(mib)]


def test_a_leak_lies_in_the_interval_of_its_slope_and_a_flat_run_around_none() -> None:
    noise = np.random.default_rng(3).normal(0, 0.5, 3600)
    flat, leak = slope_of(samples(100 + noise)), slope_of(samples(100 + noise + 6 * np.arange(3600) / 3600))
    assert abs(flat.mib_per_hour) <= flat.half_width < 0.5
    assert abs(leak.mib_per_hour - 6) <= leak.half_width < 0.5


async def test_a_soak_of_seconds_has_samples_and_a_plot(tmp_path: Path) -> None:
    found, tally, service = await soak(6.0, slots=6)
    assert tally.fates
    assert not sum(fate.foreign for fate in tally.fates)
    assert service.starts == 1
    assert min(each.memory_mib for each in found) > 10
    plot(found, slope_of(found), tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("seed", range(20))
def test_a_mutation_is_made_of_the_corpus(seed: int) -> None:
    assert len(mutated(random.Random(seed), [b"abc", b"def"])) <= 6

"""Each decoder handles any input within a few milliseconds and bounded memory."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from tests.support.worst_inputs import Case, cases, cost_of, unit_ms

MAX_UNITS = 5.0
"""3 ms where a unit takes 0.6: twice the worst measured. A list of 350,000 lists took 1,200."""

MAX_PEAK_BYTES = 8 << 20
MAX_CALLS = 40_000
"""Calls of functions, which depend on no machine: 14 a fragment. A list of floats took 260,000."""


@pytest.fixture(scope="module")
def unit() -> float:
    return unit_ms()


CASES: dict[str, list[Case]] = {}
for each in cases():
    CASES.setdefault(each.decoder, []).append(each)


@pytest.mark.parametrize("decoder", CASES)
def test_the_worst_input_of_a_decoder_costs_little(decoder: str, unit: float) -> None:
    costs = {case.shape: cost_of(case, unit) for case in CASES[decoder]}
    assert {shape: cost for shape, cost in costs.items() if cost.units > MAX_UNITS} == {}
    assert {shape: cost for shape, cost in costs.items() if cost.peak_bytes > MAX_PEAK_BYTES} == {}
    calls = {case.shape: _calls(case) for case in CASES[decoder]}
    assert {shape: count for shape, count in calls.items() if count > MAX_CALLS} == {}


def _calls(case: Case) -> int:
    """Calls of functions of Python and C while it is decoded."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        case.run()
    finally:
        sys.setprofile(None)
    return count

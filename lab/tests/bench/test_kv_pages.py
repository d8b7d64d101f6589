"""The simulated rule of shared pages: no call ends without overcommit, and short calls allow more of it."""

from __future__ import annotations

import pytest

from lab.bench.kv_pages import WHOLE_CALLS, simulate


@pytest.mark.parametrize("minutes", [1, 4, 60])
def test_whole_windows_end_no_call(minutes: float) -> None:
    found = simulate(1.0, minutes, steps=4000)
    assert found.evicted_per_1000 == 0
    assert found.calls == pytest.approx(WHOLE_CALLS, abs=1)


def test_what_short_calls_allow_long_ones_do_not() -> None:
    short, middle, long = (simulate(1.3, minutes, steps=4000) for minutes in (1, 4, 60))
    assert short.evicted_per_1000 == 0
    assert middle.evicted_per_1000 < 5 < long.evicted_per_1000
    assert short.calls > long.calls

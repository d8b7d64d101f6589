"""The load of calls outside of the model."""

from __future__ import annotations

import itertools

import pytest

from antiphon.cores import core_time
from antiphon.serve.hosting.host_load import CALLER, FRAMES, SERVER, SPELLS, measure_host_load


def test_the_best_spell_counts() -> None:
    spells_s = [0.5, 0.1, 0.05, 0.2]
    assert len(spells_s) == SPELLS
    readings = iter([0.0, *itertools.accumulate(x for spell in spells_s for x in (spell, 0.0))])
    load = measure_host_load(None, clock=lambda: next(readings))
    assert load.call_s == pytest.approx(SERVER * 0.05 / FRAMES)
    assert load.caller_s == pytest.approx(CALLER * 0.05 / FRAMES)
    assert (load.cores, load.period_s, load.loops) == (*core_time(), 1)


@pytest.mark.parametrize(("front_ends", "loops"), [(None, 1), (1, 1), (3, 3)])
def test_event_loops(front_ends: int | None, loops: int) -> None:
    assert measure_host_load(front_ends).loops == loops

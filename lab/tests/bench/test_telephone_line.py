"""A simulated telephone line: no output of the model is lost, and the delay does not grow."""

from __future__ import annotations

import numpy as np
import pytest

from lab.bench.telephone_line import FRAME_S, HOLD_EVERY_S, simulate


@pytest.mark.parametrize("fast", [0.005, -0.005])
def test_all_is_heard_and_the_delay_stays(fast: float) -> None:
    seconds = 75.0
    outcome = simulate(seconds, fast, seed=1)
    assert outcome.said > 0 == outcome.lost
    assert outcome.underruns <= seconds // HOLD_EVERY_S + 1
    assert len(outcome.delays_s) >= outcome.turns - 1  # the gap is as long as a turn
    first, *_, last = (float(np.median(part)) for part in np.array_split(outcome.delays_s, 3))
    assert last < first + 2 * FRAME_S

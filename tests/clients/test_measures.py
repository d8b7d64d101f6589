"""Percentiles, gaps, jitter and drift compared with their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_client.measures import Distribution, drift_ms, jitter_ms, playback_gaps_s

RATE = 24_000
FRAME = 1920
FRAME_S = 0.08

times = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(times, min_size=1, max_size=300))
def test_percentiles_are_observed_values_with_enough_below(values: list[float]) -> None:
    found = Distribution.of(values)
    assert found is not None
    assert found.count == len(values)
    assert found.max == max(values)
    for share, value in ((0.50, found.p50), (0.95, found.p95), (0.99, found.p99)):
        assert value in values
        assert sum(other <= value for other in values) >= share * len(values) - 1e-9
        assert sum(other < value for other in values) < share * len(values) + 1e-9


def test_missing_values_are_left_out_of_a_distribution() -> None:
    assert Distribution.of([math.nan, 3.0, 5.0]) == Distribution(2, 4.0, 3.0, 5.0, 5.0, 5.0)
    assert Distribution.of([math.nan]) is None
    assert Distribution.of([]) is None


def gaps(arrived_s: list[float], samples: int = FRAME) -> list[float]:
    return playback_gaps_s(arrived_s, [samples] * len(arrived_s), sample_rate=RATE)


def test_frames_on_the_beat_leave_no_gap() -> None:
    assert gaps([k * FRAME_S for k in range(200)]) == []


def test_quarter_frames_arriving_together_leave_no_gap_and_start_at_the_fourth() -> None:
    assert gaps([k // 4 * FRAME_S for k in range(80)], samples=480) == []
    assert gaps([0.0, 0.0, 0.5, 0.5], samples=480) == []


def test_a_late_frame_is_a_gap_of_exactly_its_lateness() -> None:
    assert gaps([0.0, 0.08, 0.19, 0.24]) == [pytest.approx(0.03)]


def test_after_a_gap_playback_has_that_much_more_in_hand() -> None:
    """The second frame that is 30 ms late does not starve a client the first one already delayed."""
    assert len(gaps([0.0, 0.08, 0.19, 0.24, 0.35, 0.40])) == 1


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_gaps_and_audio_fill_the_time_until_the_last_start(intervals_ms: list[int]) -> None:
    """What was played plus what was silent is the time that passed while one waited for more."""
    arrived_s = [0.0, *np.cumsum(np.array(intervals_ms) / 1000).tolist()]
    silences = gaps(arrived_s)
    assert all(silence > 0 for silence in silences)
    played_s = len(arrived_s) * FRAME_S
    end_s = played_s + sum(silences)
    assert end_s >= arrived_s[-1] + FRAME_S - 1e-9
    in_time = all(arrived_s[k] <= k * FRAME_S + 1e-9 for k in range(len(arrived_s)))
    assert (sum(silences) < 1e-8) == in_time


def test_jitter_is_the_distance_from_one_frame_and_skips_lost_frames() -> None:
    replied = np.array([0.0, 0.08, 0.17, np.nan, 0.33, 0.40])
    assert jitter_ms(replied, FRAME_S) == pytest.approx([0.0, 10.0, 10.0], abs=1e-9)


def test_drift_is_the_growth_of_the_median() -> None:
    sent = np.arange(100, dtype=np.float64) * FRAME_S
    assert drift_ms(sent, np.full(100, 12.0)) == 0.0
    assert drift_ms(sent, np.arange(100, dtype=np.float64)) == pytest.approx(75, abs=2)
    assert drift_ms(sent[:6], np.full(6, 12.0)) is None
    assert drift_ms(np.empty(0), np.empty(0)) is None

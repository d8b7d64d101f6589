"""The playback buffer: order, silence when empty, bounded delay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_client.jitter import LONGEST_START_MS, SLACK_MS, JitterBuffer
from antiphon_client.record import Samples

RATE = 24_000
MS = RATE // 1000


def ramp(start: int, samples: int) -> Samples:
    """Samples that are never zero and name their own place."""
    return np.arange(start + 1, start + samples + 1, dtype=np.float32)


def test_nothing_plays_until_80_ms_are_there() -> None:
    buffer = JitterBuffer(RATE)
    buffer.push(ramp(0, 79 * MS))
    assert not buffer.pull(480).any()
    buffer.push(ramp(79 * MS, MS))
    assert buffer.pull(480).tolist() == ramp(0, 480).tolist()
    assert buffer.underruns == 0


def test_running_dry_plays_silence_and_asks_for_20_ms_more() -> None:
    buffer = JitterBuffer(RATE)
    buffer.push(ramp(0, 80 * MS))
    played = buffer.pull(100 * MS)
    assert played[: 80 * MS].all()
    assert not played[80 * MS :].any()
    assert buffer.underruns == 0  # the end of a call is no gap
    buffer.push(ramp(0, 99 * MS))
    assert buffer.underruns == 1
    assert buffer.start_ms == 100
    assert not buffer.pull(10).any()


def test_the_wait_before_playing_is_bounded() -> None:
    buffer = JitterBuffer(RATE)
    for _ in range(50):
        buffer.push(ramp(0, LONGEST_START_MS * MS))
        buffer.pull(2 * LONGEST_START_MS * MS)
    buffer.push(ramp(0, MS))
    assert buffer.start_ms == LONGEST_START_MS


def test_too_much_drops_the_oldest_down_to_the_start() -> None:
    buffer = JitterBuffer(RATE)
    buffer.push(ramp(0, (80 + SLACK_MS) * MS))
    assert buffer.dropped == 0
    buffer.push(ramp((80 + SLACK_MS) * MS, 10 * MS))
    assert buffer.dropped == (SLACK_MS + 10) * MS
    assert buffer.pull(1)[0] == (SLACK_MS + 10) * MS + 1


def test_an_interruption_is_silence_at_once() -> None:
    buffer = JitterBuffer(RATE)
    buffer.push(ramp(0, 80 * MS))
    buffer.pull(480)
    buffer.clear()
    assert not buffer.pull(480).any()
    buffer.push(ramp(0, 80 * MS))
    assert buffer.underruns == 0


@given(st.lists(st.one_of(st.integers(0, 6000), st.integers(-6000, -1)), max_size=60))
def test_what_plays_is_what_came_in_order_less_what_was_dropped(steps: list[int]) -> None:
    """Positive: so many samples arrive. Negative: so many are asked for."""
    buffer = JitterBuffer(RATE)
    pushed = 0
    heard: list[float] = []
    for step in steps:
        if step >= 0:
            buffer.push(ramp(pushed, step))
            pushed += step
        else:
            out = buffer.pull(-step)
            assert out.size == -step
            heard += out[out != 0].tolist()
        assert buffer.buffered <= (LONGEST_START_MS + SLACK_MS) * MS
    assert heard == sorted(set(heard))
    assert len(heard) + buffer.buffered + buffer.dropped == pushed


def test_the_start_threshold_is_given_in_ms() -> None:
    assert JitterBuffer(RATE).start_ms == pytest.approx(80)

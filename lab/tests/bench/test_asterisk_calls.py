"""The measurement of calls through Asterisk ignores stamps and detects damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.pcm import FloatArray
from lab.bench.asterisk_calls import FRAME, likeness

SAID = 0.2 * np.random.default_rng(1).standard_normal(24 * FRAME).astype(np.float32)


def echoed(phase: int) -> FloatArray:
    """The input, 0.25 s later, with a stamp of 64 samples in each frame."""
    heard: FloatArray = np.concatenate([np.zeros(2000, np.float32), SAID, np.zeros(4000, np.float32)])
    for start in range(phase, heard.size - 64, FRAME):
        heard[start : start + 64] = 0.5 * np.random.default_rng(start).choice([-1, 1], 64)
    return heard


@given(st.integers(0, FRAME - 1))
def test_stamps_are_left_out_wherever_frames_begin(phase: int) -> None:
    assert likeness(echoed(phase), SAID) == {"from_s": 0.25, "likeness": 1.0, "share": 0.82}


@pytest.mark.parametrize("level", [0.3, 1.0])
def test_loud_damage_counts(level: float) -> None:
    heard = echoed(0)
    heard[5000:5800] += level * np.random.default_rng(2).standard_normal(800).astype(np.float32)
    found = likeness(heard, SAID)
    assert found["likeness"] < 0.97
    assert found["share"] == 0.82

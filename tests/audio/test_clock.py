"""Model time follows real time on any network, and the delay of a call does not grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.clock import MAX_FILL_S, OVERDUE_S, SETTLE_S, SLACK_S, ClockCounts, InputClock
from antiphon.audio.pcm import FloatArray

RATE, FRAME = 24_000, 1920
STEP_S = 0.02
STEP = 480


class Call:
    """A caller with a clock of its own: each sample is its number, from 1."""

    def __init__(self) -> None:
        self.clock = InputClock(RATE, FRAME, 0.0)
        self.now_s = 0.0
        self.heard: FloatArray = np.zeros(0, np.float32)
        self.captured = 0

    def capture(self, samples: int = STEP) -> FloatArray:
        first = self.captured + 1
        self.captured += samples
        return np.arange(first, first + samples, dtype=np.float32)

    def send(self, pcm: FloatArray) -> None:
        self.heard = np.concatenate((self.heard, self.clock.arrive(pcm, self.now_s)))

    def wait(self, seconds: float = STEP_S) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self.heard = np.concatenate((self.heard, self.clock.look(self.now_s)))

    def speak(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.wait()
            self.send(self.capture())

    def stall(self, seconds: float) -> list[FloatArray]:
        """What was captured meanwhile, and did not come."""
        held = []
        for _ in range(round(seconds / STEP_S)):
            self.wait()
            held.append(self.capture())
        return held

    @property
    def ahead_s(self) -> float:
        return self.heard.size / RATE - self.now_s


def test_audio_in_time_passes_as_it_is() -> None:
    call = Call()
    call.speak(3.0)
    np.testing.assert_array_equal(call.heard, np.arange(1, 72_001))
    assert call.clock.counts == ClockCounts()


def test_jitter_below_two_frames_is_left_alone() -> None:
    call = Call()
    call.speak(1.0)
    for _ in range(10):
        held = call.stall(0.14)
        for pcm in held:
            call.send(pcm)
        call.speak(0.1)
    np.testing.assert_array_equal(call.heard, np.arange(1, call.captured + 1))
    assert call.clock.counts == ClockCounts()


def test_a_silent_caller_is_silence_two_frames_behind() -> None:
    call = Call()
    call.wait(2.0)
    assert call.heard.size % FRAME == 0
    assert 0.0 <= -call.ahead_s - OVERDUE_S < 0.08
    assert not call.heard.any()
    assert call.clock.counts == ClockCounts(filled=call.heard.size)


def test_what_a_stall_held_up_is_dropped_and_the_rest_is_in_time() -> None:
    call = Call()
    call.speak(1.0)
    held = call.stall(1.0)
    for pcm in held:
        call.send(pcm)
    call.wait()
    call.speak(1.0)
    assert call.ahead_s <= SLACK_S
    counts = call.clock.counts
    assert counts.filled > 0.7 * RATE
    assert counts.filled - (OVERDUE_S + SLACK_S + 0.08) * RATE <= counts.dropped <= counts.filled
    # The latest second is whole, and the last of the second before it.
    np.testing.assert_array_equal(call.heard[-RATE:], np.arange(call.captured - RATE + 1, call.captured + 1))
    assert call.heard.size == call.captured + counts.filled - counts.dropped


def test_a_caller_that_speaks_again_after_a_pause_loses_nothing() -> None:
    call = Call()
    call.speak(1.0)
    call.wait(30.0)
    call.speak(1.0)
    call.wait()
    assert call.clock.counts.dropped == 0
    spoken = call.heard[call.heard > 0]
    np.testing.assert_array_equal(spoken, np.arange(1, 2 * RATE + 1))
    assert call.ahead_s <= SLACK_S


@pytest.mark.parametrize("message_ms", [100, 240, 300, 500, 1000])
def test_a_caller_of_long_messages_loses_nothing(message_ms: int) -> None:
    call = Call()
    for _ in range(10_000 // message_ms):
        call.wait(message_ms / 1000)
        call.send(call.capture(message_ms * RATE // 1000))
    call.wait(2 * SETTLE_S)
    counts = call.clock.counts
    assert counts.dropped == 0
    assert counts.filled <= message_ms * RATE // 1000, "before its first message alone"
    spoken = call.heard[call.heard > 0]
    np.testing.assert_array_equal(spoken, np.arange(1, call.captured + 1))


def test_a_frame_begun_is_filled_to_its_end() -> None:
    call = Call()
    call.speak(0.1)
    call.wait(0.24)
    assert call.heard.size == 2 * FRAME
    assert np.count_nonzero(call.heard) == round(0.1 * RATE)


def test_time_that_the_server_did_not_live_through_is_left_out() -> None:
    clock = InputClock(RATE, FRAME, 0.0)
    zeros = clock.look(60.0)
    assert zeros.size == round(MAX_FILL_S * RATE) // FRAME * FRAME
    assert clock.look(60.0 + SETTLE_S).size == 0


def test_it_is_looked_at_when_it_has_something_to_do() -> None:
    clock = InputClock(RATE, FRAME, 5.0)
    assert clock.due_s == pytest.approx(5.0 + 0.08 + OVERDUE_S)
    assert not clock.look(clock.due_s - 0.001).size
    assert clock.look(clock.due_s + 0.001).size == FRAME
    assert clock.due_s == pytest.approx(5.0 + 0.16 + OVERDUE_S)
    assert not clock.arrive(np.ones(480, np.float32), 5.25).size
    assert clock.due_s == pytest.approx(5.25 + SETTLE_S)
    assert clock.look(clock.due_s + 0.001).size == 480
    assert clock.due_s == pytest.approx(5.0 + 0.16 + OVERDUE_S)


def test_a_caller_that_is_faster_than_time_is_left_to_the_engine() -> None:
    clock = InputClock(RATE, FRAME, 0.0)
    assert clock.arrive(np.ones(10 * RATE, np.float32), 0.0).size == 10 * RATE
    assert clock.counts == ClockCounts()


@given(st.lists(st.tuples(st.sampled_from(["speak", "pause", "stall"]), st.integers(1, 60)), max_size=12))
def test_delay_never_grows_and_every_sample_is_counted(deeds: list[tuple[str, int]]) -> None:
    call = Call()
    for deed, steps in deeds:
        if deed == "speak":
            call.speak(steps * STEP_S)
        elif deed == "pause":
            call.wait(steps * STEP_S)
        else:
            for pcm in call.stall(steps * STEP_S):
                call.send(pcm)
    call.wait(0.06)
    counts = call.clock.counts
    assert call.ahead_s <= SLACK_S + 1e-6
    assert call.heard.size == call.captured + counts.filled - counts.dropped
    spoken = call.heard[call.heard > 0]
    assert (np.diff(spoken) > 0).all()
    assert counts.dropped <= counts.filled

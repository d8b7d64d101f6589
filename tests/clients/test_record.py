"""Frames of a session, counted in samples, with and without stamps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_client.record import FrameRecorder

FRAME = 1920


def test_a_frame_is_complete_when_the_message_that_holds_its_last_sample_is_due() -> None:
    recorder = FrameRecorder(frame_samples=FRAME, delay_frames=0)
    for message in range(9):
        recorder.sent(480, now_s=message * 0.02, late_s=0.001)
    timeline = recorder.timeline()
    assert timeline.sent_s.tolist() == pytest.approx([0.059, 0.139])
    assert timeline.send_late_ms.tolist() == pytest.approx([1.0] * 9)


def test_a_reply_counts_from_its_last_piece_and_only_when_whole() -> None:
    recorder = FrameRecorder(frame_samples=FRAME, delay_frames=0)
    recorder.sent(2 * FRAME, 0.0, 0.0)
    for piece in range(4):
        recorder.replied(0, 480, 1.0 + piece, step_ms=5.0, wait_ms=2.0)
    recorder.replied(1, 480, 9.0, step_ms=5.0, wait_ms=2.0)
    timeline = recorder.timeline()
    assert timeline.replied_s[0] == 4.0
    assert np.isnan(timeline.replied_s[1])
    assert recorder.frames_answered == 1
    assert not recorder.is_answered
    assert timeline.step_ms[0] == 5.0
    assert timeline.arrived_samples.tolist() == [480] * 5


def test_replies_backwards_twice_or_unasked_are_misplaced() -> None:
    recorder = FrameRecorder(frame_samples=FRAME, delay_frames=0)
    recorder.sent(3 * FRAME, 0.0, 0.0)
    for frame in (1, 1, 0, 3):
        recorder.replied(frame, FRAME, 1.0, step_ms=0.0, wait_ms=0.0)
    assert recorder.misplaced == 3
    assert recorder.frames_answered == 1


@given(pieces=st.lists(st.integers(1, 5000), max_size=40), silent=st.integers(0, 3))
def test_unstamped_audio_answers_in_order_after_the_delay_frames(pieces: list[int], silent: int) -> None:
    recorder = FrameRecorder(frame_samples=FRAME, delay_frames=silent)
    recorder.sent(200 * FRAME, 0.0, 0.0)
    for k, samples in enumerate(pieces):
        recorder.heard(samples, float(k + 1))
    replied = recorder.timeline().replied_s
    assert recorder.frames_answered == sum(pieces) // FRAME
    assert np.flatnonzero(~np.isnan(replied)).tolist() == list(range(silent, silent + sum(pieces) // FRAME))
    assert recorder.misplaced == 0
    heard = np.cumsum(pieces) if pieces else np.zeros(0)
    for frame in range(recorder.frames_answered):
        assert replied[frame + silent] == 1 + int(np.argmax(heard >= (frame + 1) * FRAME))


def test_an_interruption_moves_unstamped_audio_on_to_the_frame_it_names() -> None:
    recorder = FrameRecorder(frame_samples=FRAME, delay_frames=1)
    recorder.sent(10 * FRAME, 0.0, 0.0)
    recorder.heard(FRAME, 1.0)
    recorder.interrupted(6)
    recorder.heard(FRAME, 2.0)
    assert np.flatnonzero(~np.isnan(recorder.timeline().replied_s)).tolist() == [1, 6]
    recorder.interrupted(3)
    recorder.heard(FRAME, 3.0)
    assert np.flatnonzero(~np.isnan(recorder.timeline().replied_s)).tolist() == [1, 6, 7]

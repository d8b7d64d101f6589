"""Resume of an agent's call: frames to send, missing frames and repeated ones."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.agent.values import ReplaySound
from antiphon.serve.calls.local_resume import MAX_GAPS, MAX_SKIPPED_FRAMES, Recent, continued


@pytest.mark.parametrize(
    ("samples", "frame", "found"),
    [(0, 0, (0, 0, 0)), (250, 0, (250, 50, 2)), (250, 2, (250, 50, 2)), (250, 3, (300, 0, 3))],
)
def test_a_client_continues_with_the_first_frame_that_is_not_whole_or_a_later_one(
    samples: int, frame: int, found: tuple[int, int, int]
) -> None:
    assert continued(samples, frame, 100) == found


def test_a_client_is_ahead_by_a_bounded_number_of_frames() -> None:
    assert continued(250, 2**32 - 2, 100) == (100 * (2 + MAX_SKIPPED_FRAMES), 0, 2 + MAX_SKIPPED_FRAMES)


def test_a_client_gets_again_what_it_lacks_of_the_last_frames() -> None:
    recent, pcm = Recent(80.0), np.zeros(1, np.float32)
    assert recent.after(-1, 0) == (0, 0, [])
    for frame in range(20):
        recent.add(frame, pcm)
    assert recent.after(16, 20) == (17, 0, [(frame, pcm) for frame in (17, 18, 19)])
    assert recent.after(9, 20)[:2] == (15, 5)
    assert recent.after(-1, 20)[:2] == (15, 0)  # a client that has none may have heard none
    recent.clear()
    assert recent.after(9, 20) == (20, 10, [])
    recent.add(60, pcm)  # the numbers between were not sent
    assert recent.after(19, 61) == (60, 0, [(60, pcm)])
    recent.clear()
    assert recent.after(17, 70)[:2] == (70, 3)  # 18, 19 and 60


def test_the_last_gaps_in_the_numbers_of_frames_are_known() -> None:
    recent, pcm = Recent(80.0), np.zeros(1, np.float32)
    for frame in range(0, 4 * MAX_GAPS, 2):  # each second number is not sent
        recent.add(frame, pcm)
    following = 4 * MAX_GAPS - 1
    first, missed, _ = recent.after(2 * MAX_GAPS, following)
    assert missed == (first - 2 * MAX_GAPS) // 2 - 1
    assert recent.after(0, following)[1] == first // 2 - 1 + MAX_GAPS - 1  # older gaps count as lost


def test_what_a_client_lacks_of_a_reply_is_counted_in_its_sound() -> None:
    recent, pcm = Recent(80.0), np.zeros(1, np.float32)
    assert recent.replayed_sound(-1, 0) == ReplaySound(0.0, "", (0, 0))
    for frame, item in enumerate(["", "old", "", *["new"] * 6, "", *["new"] * 6]):  # 3 to 8, and 10 to 15
        recent.add(frame, pcm, item)
    assert recent.replayed_sound(5, 11) == ReplaySound(5 * 0.08, "new", (3 * 80, 7 * 80))
    assert recent.replayed_sound(8, 10) == ReplaySound(6 * 0.08, "new", (6 * 80, 6 * 80))
    assert recent.replayed_sound(1, 16) == ReplaySound(0.0, "new", (0, 12 * 80))
    assert recent.replayed_sound(-1, 11) == ReplaySound(
        5 * 0.08, "new", (0, 0)
    )  # it is not known what it has
    assert recent.replayed_sound(99, 16) == ReplaySound(0.0, "new", (12 * 80, 12 * 80))

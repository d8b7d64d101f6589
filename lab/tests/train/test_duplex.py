"""The measures of conversations, on replies with known times."""

from __future__ import annotations

import numpy as np
import pytest

from lab.train.domain import REFUSAL
from lab.train.duplex import answering, backchannel, confusion, interrupting, pause_handling, turn_taking
from lab.train.duplex_rules import Speech, Stretch, stretches, taking_over
from lab.train.duplex_tracks import Track, interruptions, without_speech
from lab.train.rows import Reply
from tests.support.caller import SAMPLE_RATE

SECONDS = 12


def replied(words: str, at_s: list[float], *sounds: Stretch) -> Reply:
    """Words, each at its second, and noise in these intervals."""
    pcm = np.zeros(SECONDS * SAMPLE_RATE, np.float32)
    for start_s, end_s in sounds:
        pcm[int(start_s * SAMPLE_RATE) : int(end_s * SAMPLE_RATE)] = 0.1
    return Reply(pcm, tuple(zip(at_s, words.split(), strict=True)))


def asked(
    kind: str, *parts: Stretch, right: str = "", voice: str = "en-gb+f5", around: tuple[str, ...] = ()
) -> Track:
    """A turn whose parts are in these intervals."""
    return Track(kind, np.zeros(0, np.float32), parts, right, voice, not around, around)


SILENT = replied("", [])


def test_a_silence_of_half_a_second_does_not_part_what_is_said() -> None:
    reply = replied("", [], (1.0, 2.0), (2.4, 3.0), (3.6, 4.0))
    assert stretches(reply.pcm) == [pytest.approx((1.0, 3.0)), pytest.approx((3.6, 4.0))]


@pytest.mark.parametrize(
    ("reply", "is_take_over"),
    [
        (SILENT, False),
        (replied("you are welcome", [1.0, 1.2, 1.4], (1.0, 1.9)), False),
        (replied("you are welcome", [1.0, 1.2, 1.4], (1.0, 2.1)), True),
        (replied("two plus three is", [1.0, 1.1, 1.2, 1.3], (1.0, 1.5)), True),
    ],
)
def test_three_words_in_less_than_a_second_take_nothing_over(reply: Reply, is_take_over: bool) -> None:
    assert Speech.between(reply, 0.0, SECONDS).is_take_over is is_take_over


def test_a_latency_is_never_below_zero_and_only_of_who_took_over() -> None:
    reply = replied("two plus three is five", [2.0, 2.3, 2.6, 2.9, 3.2], (2.0, 3.6))
    speech = Speech.between(reply, 0.0, SECONDS)
    nothing = Speech.between(SILENT, 0.0, SECONDS)
    assert taking_over([(speech, 1.5), (speech, 2.4), (nothing, 1.0), (nothing, 1.0)]) == {
        "turns": 4,
        "take_over": 0.5,
        "latency_ms_mean": 250.0,
        "latency_ms_median": 250.0,
    }
    assert taking_over([(nothing, 1.0)])["latency_ms_mean"] is None


def test_an_answer_before_the_end_of_a_pause_takes_over_and_one_after_it_does_not() -> None:
    early = replied("my name is robin", [2.2, 2.4, 2.6, 2.8], (2.2, 3.4))
    late = replied("two plus three is five", [4.0, 4.3, 4.6, 4.9, 5.2], (4.0, 5.6))
    short = asked("pause", (1.0, 2.0), (2.4, 3.6), right="two plus three is five")
    long = asked("pause", (1.0, 2.0), (3.2, 3.8), right="two plus three is five")
    assert pause_handling([(short, late), (long, early), (long, late)]) == {
        "turns": 3,
        "take_over": pytest.approx(1 / 3, abs=1e-4),
        "by_pause_s": {"0.4": 0.0, "1.2": 0.5},
        "right_after": pytest.approx(2 / 3, abs=1e-4),
    }


def test_an_interrupted_answer_is_timed_until_it_is_silent() -> None:
    track = asked("interruption", (1.0, 2.0), (3.0, 4.0))
    stopped = replied("one", [2.2], (2.2, 3.3))
    over = replied("one", [2.2], (2.2, 2.8))
    report = interrupting([(track, stopped), (track, over), (track, SILENT)])
    assert (report["calls"], report["interrupted"]) == (3, 1)
    assert report["stop_ms_median"] == pytest.approx(300, abs=21)
    assert interrupting([(track, SILENT)])["stop_ms_median"] is None


def test_a_short_word_aside_is_a_backchannel_and_a_sentence_is_not() -> None:
    track = asked("long speech", (1.0, 9.0))
    aside = replied("hello", [3.0], (3.0, 3.5))
    sentence = replied("two plus three is", [3.0, 3.2, 3.4, 3.6], (3.0, 3.9))
    report = backchannel([(track, aside), (track, sentence), (track, SILENT)])
    assert report == {
        "turns": 3,
        "seconds": 27.0,
        "take_over": pytest.approx(1 / 3, abs=1e-4),
        "frequency_hz": pytest.approx(1 / 27, abs=1e-4),
    }


def test_a_refusal_in_words_and_silence_are_told_from_answers() -> None:
    refusal = replied(REFUSAL, [3.0, 3.2, 3.4, 3.6], (3.0, 4.0))
    unfinished = replied("nine plus six is", [3.0, 3.2, 3.4, 3.6], (3.0, 4.0))
    right = replied("the sky is blue", [3.0, 3.2, 3.4, 3.6], (3.0, 4.0))
    question = asked("colour", (1.0, 2.0), right="the sky is blue")
    noisy = asked("colour", (1.0, 2.0), right="the sky is blue", voice="rms warp", around=("rain", "hall"))
    table = confusion(
        [(question, right), (noisy, SILENT), (asked("half"), refusal), (asked("prose"), unfinished)]
    )
    assert table == {
        "question": {"answered": 1, "refused": 0, "silent": 1},
        "half": {"answered": 0, "refused": 1, "silent": 0},
        "prose": {"answered": 1, "refused": 0, "silent": 0},
        "outside, all speech": {"answered": 1, "refused": 1, "silent": 0},
    }
    report = answering([(question, right), (question, unfinished), (noisy, SILENT), (noisy, refusal)])
    assert report["all"] == {"asked": 4, "right": 0.25, "unfinished": 0.25, "refused": 0.5}
    assert report["clean"]["right"] == 0.5
    assert report["by_surroundings"] == dict.fromkeys(("hall", "rain"), report["in_surroundings"])
    assert report["by_voice"]["rms warp"]["refused"] == 1.0
    assert report["by_intent"]["colour"]["asked"] == 4


def test_what_says_nothing_to_a_question_took_no_turn() -> None:
    assert turn_taking([(asked("colour", (1.0, 2.0)), SILENT)])["take_over"] == 0.0


def test_without_long_answers_there_is_nothing_to_interrupt() -> None:
    assert interruptions([], 3) == []


def test_noise_and_music_come_by_turns() -> None:
    tracks = without_speech(4)
    assert [one.kind for one in tracks] == ["noise", "music", "noise", "music"]
    assert all(np.abs(one.pcm).max() > 0.01 for one in tracks)

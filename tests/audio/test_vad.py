"""Detection of the start and end of speech."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.pcm import FloatArray
from antiphon.audio.vad import DetectorRules, SpeechDetector, SpeechEvent, SpeechStarted, SpeechStopped

RATE = 24_000


def sound(ms: int, level: float = 0.1) -> FloatArray:
    return (level * np.sin(np.arange(RATE * ms // 1000) / 9)).astype(np.float32)


def silence(ms: int) -> FloatArray:
    return np.zeros(RATE * ms // 1000, np.float32)


def test_speech_is_found_with_its_times() -> None:
    detector = SpeechDetector(RATE)
    said = np.concatenate((silence(1000), sound(800), silence(600)))
    assert detector.feed(said) == [SpeechStarted(700), SpeechStopped(2300)]
    assert detector.now_ms == 2400


@given(st.lists(st.integers(1, 5000), max_size=40))
def test_the_portions_in_which_audio_comes_do_not_matter(cuts: list[int]) -> None:
    said = np.concatenate((silence(400), sound(300), silence(100), sound(200), silence(700), sound(90)))
    whole = SpeechDetector(RATE).feed(said)
    detector, found, start = SpeechDetector(RATE), list[SpeechEvent](), 0
    for cut in cuts:
        found += detector.feed(said[start : start + cut])
        start += cut
    assert found + detector.feed(said[start:]) == whole


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        (sound(40), DetectorRules()),
        (sound(500, 0.005), DetectorRules()),
        (sound(500), DetectorRules(level_dbfs=-20.0)),
    ],
    ids=["a click", "faint", "below the level that is asked for"],
)
def test_what_is_no_speech(said: FloatArray, rules: DetectorRules) -> None:
    assert SpeechDetector(RATE, rules).feed(np.concatenate((said, silence(100)))) == []


def test_a_pause_shorter_than_the_rule_ends_nothing() -> None:
    detector = SpeechDetector(RATE, DetectorRules(silence_ms=200))
    assert detector.feed(np.concatenate((sound(300), silence(190), sound(300)))) == [SpeechStarted(0)]
    assert detector.feed(silence(200)) == [SpeechStopped(990)]


def test_speech_may_end_for_another_reason_in_a_pause() -> None:
    detector = SpeechDetector(RATE)
    assert detector.end() is None
    detector.feed(np.concatenate((sound(300), silence(70))))
    assert detector.end() is None  # it may be within a word
    detector.feed(silence(10))
    assert detector.end() == SpeechStopped(380)
    assert not detector.is_speech
    assert detector.feed(silence(1000)) == []

"""The page's questions in ten voices: the voices, the number of tracks, and the count of wrong answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from antiphon.arrays import FloatArray
from lab.train import held_out, ten_voices
from lab.train.domain import Domain
from lab.train.rows import Reply, Talker
from lab.train.synthetic_voices import SAMPLE_RATE


class Parrot:
    """A talker that gives its answers in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        """One answer for each track."""
        said = [self.answers[index % len(self.answers)] for index in range(len(tracks))]
        return [Reply(np.zeros(0, np.float32), ((1.0, text),) if text else ()) for text in said]


def test_there_are_ten_voices_and_all_are_held_out() -> None:
    found = ten_voices.ten_voices()
    assert len({(voice.program, voice.name) for voice in found}) == 10
    for voice in found:
        assert voice.name.removeprefix("en-us+") in held_out.VOICES[voice.program]


def test_each_voice_asks_as_often_after_silences_of_different_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ten_voices, "recording", lambda *_: np.full(SAMPLE_RATE, 0.1, np.float32))
    asked = ten_voices.tracks(cast("Any", None), Domain().turn("what colour is snow"), 7)
    starts = [int(np.flatnonzero(one)[0]) for one in asked]
    assert len(asked) == 70
    assert len(set(starts)) > 60
    assert all(0.3 <= start / SAMPLE_RATE < 1.6 for start in starts)


def test_only_the_whole_right_answer_counts() -> None:
    turn = Domain().turn("what colour is snow")
    talker = cast("Talker", Parrot(turn.answer, "snow is black", ""))
    found = ten_voices.wrong_answers(talker, turn, [np.zeros(1, np.float32)] * 6)
    assert found == {"snow is black": 2, "": 2}


def test_an_unknown_question_is_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ten_voices.main(["--question", "what colour is time"])
    assert "'what colour is time' is no question of the domain" in capsys.readouterr().err

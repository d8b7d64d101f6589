"""The built-in recogniser transcribes at least a word of every question that begins with the audio."""

from __future__ import annotations

from antiphon.models.transcript import PREFIX_FRAMES
from lab.bench.first_word import questions, written


def test_two_frames_of_silence_are_enough_and_one_is_not() -> None:
    asked = questions(24)
    clips = [pcm for _, pcm in asked]
    heard = written(clips, PREFIX_FRAMES)
    assert all(heard), heard
    assert not all(written(clips[:8], 1))

"""The built-in recogniser transcribes at least a word of every question that begins with the audio."""

from __future__ import annotations

from antiphon.models.transcript import PREFIX_FRAMES
from lab.bench.first_word import questions, written


def test_two_frames_of_silence_are_enough() -> None:
    heard = written([pcm for _, pcm in questions(24)], PREFIX_FRAMES)
    assert all(heard), heard

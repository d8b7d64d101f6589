"""The clips of the clients: small, mono speech at one loudness, made by lab/tools/make_clips.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sphn

from lab.tools.make_clips import CLIPS, FOLDER, PAUSE_S, PEAK, QUESTIONS, RMS, SAMPLE_RATE, Line, join, level
from tests.support import ask

MAX_BYTES_IN_ALL = 300_000


def test_the_folder_holds_the_clips_of_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.ogg")} == set(CLIPS)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_BYTES_IN_ALL


@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_speech_for_some_seconds(name: str) -> None:
    pcm, sample_rate = sphn.read_opus(str(FOLDER / f"{name}.ogg"))
    channels, samples = pcm.shape
    assert channels == 1
    shortest, longest = (1.5, 4) if name in QUESTIONS else (8, 15)
    assert shortest < samples / sample_rate < longest
    assert 0.25 < float(np.abs(pcm).max()) <= 1.0
    spoken = np.sqrt(np.mean(np.square(pcm[0, : samples // 480 * 480].reshape(-1, 480)), axis=1)) > 0.01
    total_s = samples / sample_rate
    pauses_s = 2 * PAUSE_S if name in QUESTIONS else 0.0
    assert 0.5 < float(np.mean(spoken)) * total_s / (total_s - pauses_s) < 0.95


def test_the_words_that_the_product_asks_are_those_of_the_clips() -> None:
    spoken = {name: " ".join(line.words for line in lines) for name, lines in QUESTIONS.items()}
    asked = {name: words for name, (words, _) in ask.QUESTIONS.items()}
    assert asked.items() <= spoken.items()
    assert PAUSE_S == ask.PAUSE_S


def test_lines_are_levelled_and_kept_apart() -> None:
    quiet = np.sin(np.arange(SAMPLE_RATE) / 20).astype(np.float32) * 0.01
    spiky = np.zeros(SAMPLE_RATE, np.float32)
    spiky[100] = 0.5
    assert np.sqrt(np.mean(np.square(level(quiet)))) == pytest.approx(RMS, rel=1e-3)
    assert np.abs(level(spiky)).max() == pytest.approx(PEAK)
    pause = round(PAUSE_S * SAMPLE_RATE)
    joined = join([level(quiet), level(spiky)])
    assert joined.size == 2 * SAMPLE_RATE + 3 * pause
    assert not joined[:pause].any()
    assert not joined[-pause:].any()
    assert not joined[pause + SAMPLE_RATE : 2 * pause + SAMPLE_RATE].any()


def test_a_line_names_its_program_voice_and_words() -> None:
    for program in ("flite", "espeak-ng"):
        command = Line(program, "someone", "two words").command(Path("line.wav"))
        assert command[0] == program
        assert {"someone", "two words", "line.wav"} < set(command)

"""The terminal during a call: text, meters, and a clean screen afterwards."""

from __future__ import annotations

import io

import numpy as np
import pytest

from antiphon_client.screen import FLOOR_DB, LINE_WIDTH, Screen, level_db, meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_full_scale_square_wave_is_0_db_and_a_tenth_of_it_minus_20() -> None:
    wave = np.tile(np.array([1.0, -1.0], np.float32), 240)
    assert level_db(wave) == pytest.approx(0.0)
    assert level_db(wave / np.float32(10)) == pytest.approx(-20.0, abs=1e-4)
    assert level_db(np.zeros(480, np.float32)) == FLOOR_DB
    assert level_db(np.zeros(0, np.float32)) == FLOOR_DB
    assert level_db(wave * 1e-9) == FLOOR_DB


def test_the_meter_grows_with_the_level_and_stays_in_its_width() -> None:
    bars = [meter(db).count("█") for db in (-100, -60, -30, 0, 10)]
    assert bars == [0, 0, 5, 10, 10]
    assert len(meter(-30)) == 10


def test_off_a_terminal_only_words_are_written() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    screen.say("connected")
    for piece in (" hello", " there"):
        screen.text(piece)
        screen.levels(-10.0, -20.0)
    screen.close()
    assert stream.getvalue() == "connected\n hello there\n"


def test_on_a_terminal_words_stand_behind_the_meters_and_remain_after_them() -> None:
    stream = Terminal()
    screen = Screen(stream)
    screen.text(" hello")
    screen.levels(0.0, -60.0)
    assert "you ██████████  model ░░░░░░░░░░   hello" in stream.getvalue()
    screen.close()
    assert stream.getvalue().endswith("\r hello\n")


def test_long_speech_breaks_between_words() -> None:
    stream = io.StringIO()
    screen = Screen(stream)
    for _ in range(60):
        screen.text(" word")
    screen.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert all(len(line) <= LINE_WIDTH for line in lines)
    assert sum(line.count("word") for line in lines) == 60

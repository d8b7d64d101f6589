"""Recordings of people, cut into turns that should be refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from antiphon.audio.wav import write_wav
from lab.train.domain import REFUSAL
from lab.train.duplex_tracks import recorded
from lab.train.outside import INTENTS, RECORDED
from lab.train.recordings import LONGEST_S, PIECE_S, pieces, recordings_in

RATE = 24_000


def test_a_folder_has_what_can_be_heard_up_to_half_a_minute(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).uniform(-0.1, 0.1, 40 * RATE).astype(np.float32)
    write_wav(tmp_path / "long.wav", noise, RATE)
    write_wav(tmp_path / "b.wav", noise[: 12 * RATE], RATE)
    (tmp_path / "README.md").write_text("no sound")
    found = recordings_in(tmp_path)
    assert {name: pcm.size for name, pcm in found.items()} == {
        "b.wav": 12 * RATE,
        "long.wav": LONGEST_S * RATE,
    }
    assert recordings_in(None) == {}


def test_pieces_are_whole_and_have_nothing_to_write_down() -> None:
    found = pieces({"a.mp3": np.ones(12 * RATE, np.float32), "b.mp3": np.ones(4 * RATE, np.float32)})
    assert [one.pcm.size for one in found] == [PIECE_S * RATE] * 2
    assert {(one.turn.intent, one.turn.question, one.turn.answer) for one in found} == {
        (RECORDED, "", REFUSAL)
    }
    assert [one.voice.name for one in found] == ["a.mp3"] * 2
    assert RECORDED not in INTENTS


def test_a_talker_hears_each_piece_by_itself_and_clean() -> None:
    tracks = recorded({"a.mp3": np.full(11 * RATE, 0.5, np.float32)})
    assert [one.kind for one in tracks] == [RECORDED] * 2
    assert all(one.is_clean and not one.around for one in tracks)
    assert all(one.end_s - one.parts[0][0] == PIECE_S for one in tracks)

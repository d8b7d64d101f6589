"""Shards: finding the finished files of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.train.evaluate import held_out_questions
from lab.train.shards import copies_of, shards_in


def test_a_shard_that_is_being_written_is_none(tmp_path: Path) -> None:
    for name in ("0001.npz", "0000.npz", "0002.part.npz", "answers.npz", "log.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in shards_in(tmp_path)] == ["0000.npz", "0001.npz"]


def test_copies_have_seeds_and_names_of_their_own(tmp_path: Path) -> None:
    for name in ("0000.npz", "0002.npz"):
        (tmp_path / name).touch()
    told = [(seed, name, source.name) for seed, name, source in copies_of(tmp_path, 2)]
    assert told == [
        *((0, "0000.npz", "0000.npz"), (1, "0002.npz", "0002.npz")),
        *((1000, "1000.npz", "0000.npz"), (1001, "1002.npz", "0002.npz")),
    ]


def test_an_evaluation_without_questions_says_how_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no questions in .*lab.train.questions --held-out --shards 4"):
        held_out_questions(tmp_path)

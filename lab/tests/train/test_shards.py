"""Shards: finding the finished files of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.train.evaluate import held_out_questions
from lab.train.shards import shards_in


def test_a_shard_that_is_being_written_is_none(tmp_path: Path) -> None:
    for name in ("0001.npz", "0000.npz", "0002.part.npz", "answers.npz", "log.jsonl"):
        (tmp_path / name).touch()
    assert [path.name for path in shards_in(tmp_path)] == ["0000.npz", "0001.npz"]


def test_an_evaluation_without_questions_says_how_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no questions in .*lab.train.questions --held-out --shards 4"):
        held_out_questions(tmp_path)

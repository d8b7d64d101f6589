"""The questions with which a model is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.train.evaluate import judging_shards


def test_the_shard_that_chooses_the_best_checkpoint_judges_only_where_it_is_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--held-out --shards 4"):
        judging_shards(tmp_path)
    for name in ("0000.npz", "0001.npz", "0002.npz"):
        (tmp_path / name).touch()
    assert [path.name for path in judging_shards(tmp_path)] == ["0001.npz", "0002.npz"]
    for name in ("0001.npz", "0002.npz"):
        (tmp_path / name).unlink()
    assert [path.name for path in judging_shards(tmp_path)] == ["0000.npz"]

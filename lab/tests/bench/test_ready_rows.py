"""The benchmark of ready rows: it runs, and its gathering graph computes what windows compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon.models.catalog import load_checkpoint
from lab.bench.gathering_graph import GatheringGraph
from lab.bench.ready_rows import PATTERNS, WAYS, Setting, draw, main

SETTING = Setting(slots=5, threads=1, turns=2)


def test_it_times_every_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = [
        "echo",
        "--stage",
        "decode",
        "--slots",
        "5",
        "--turns",
        "2",
        "--out",
        str(tmp_path / "found.json"),
    ]
    assert main(line) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[0] == f"| ready rows | {' | '.join(WAYS)} |"
    assert [row.split("|")[1].strip() for row in rows[2:]] == [f"{n} {p}" for n in (1, 4) for p in PATTERNS]
    assert (tmp_path / "found.json").is_file()


def test_it_compares_bits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = ["tiny", "--stage", "lm", "--slots", "3", "--invariance", "--out", str(tmp_path / "found.json")]
    assert main(line) == 0
    assert "| tiny | lm |" in capsys.readouterr().out


def test_row_numbers_do_what_windows_do() -> None:
    checkpoint = load_checkpoint("tiny")
    form = checkpoint.graphs["lm"]
    graph, other = (SETTING.graph(checkpoint.file(form.file), form) for _ in range(2))
    gathering = GatheringGraph(checkpoint.file(form.file), form, other.state, threads=1)
    random = np.random.default_rng(0)
    for name, array in graph.state.arrays.items():
        if array.dtype == np.float32:
            array[:] = random.normal(0, 0.3, array.shape)
        other.state.arrays[name][:] = array
    rows = np.array([3, 0, 4], np.int32)
    for _ in range(3):
        gathering.run(rows)
        for row in rows.tolist():
            graph.run(range(row, row + 1))
    np.testing.assert_allclose(gathering.packed["logits"][:3], graph.outputs["logits"][rows], atol=1e-4)
    for name, array in graph.state.arrays.items():
        np.testing.assert_allclose(array, other.state.arrays[name], atol=1e-4, err_msg=name)


def test_rows_are_drawn_once_each() -> None:
    random = np.random.default_rng(1)
    for pattern in PATTERNS:
        rows = draw(random, 4, pattern, 9)
        assert len(set(rows.tolist())) == 4
        assert rows.max() < 9
    assert (np.diff(draw(random, 4, "neighbours", 9)) == 1).all()

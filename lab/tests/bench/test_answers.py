"""Answers by form: the marks of a small model, the interval, and the text about losses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab.bench.answers import Settings, interval, mark_part, render
from tests.support.make_checkpoint import make_checkpoint


def test_every_question_is_asked_in_one_part(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", kind="moshi")
    told = [[0, 1, "who are you", ""] for _ in range(5)]
    np.savez(
        tmp_path / "0000.npz",
        codes=np.zeros((8, 10), np.int16),
        ends=np.arange(2, 12, 2),
        sizes=np.array([5]),
        strips=np.zeros((1, 8, 20), np.int16),
        told=np.array(json.dumps(told)),
    )
    settings = Settings(str(model), "torch", ("as-shipped",), str(tmp_path), most=5, rows=3, processes=2)
    marks = [mark_part(settings, str(model), part) for part in range(2)]
    assert [len(right) for right, _ in marks] == [3, 2]
    assert marks[0][1]["dtype"] == "float32"
    assert marks[0][1]["weights_bytes"] > 0


@pytest.mark.parametrize(("right", "asked"), [(0, 10), (5, 10), (10, 10), (180, 200)])
def test_the_interval_holds_the_share_and_narrows(right: int, asked: int) -> None:
    low, high = interval(right, asked)
    assert 0 <= low <= right / asked <= high <= 1
    narrow_low, narrow_high = interval(100 * right, 100 * asked)
    assert narrow_high - narrow_low < (high - low) / 3


def test_the_page_counts_what_was_lost_and_won() -> None:
    facts = {"dtype": "float32", "quantization": "none", "weights_bytes": 2_000_000, "seconds": 1.0}
    values = {
        "settings": {"backend": "mlx", "model": "some/tiny"},
        "command": "python -m lab.bench.answers",
        "started_at": "now",
        "machine": {
            "cpu": "C",
            "cores": 2,
            "memory_bytes": 2**30,
            "system": "S",
            "python": "3",
            "versions": {},
        },
        "attempts": {
            "as-shipped": {"right": [True, True, False, True], **facts},
            "q4": {"right": [True, False, True, False], **facts},
        },
    }
    text = render(values)
    assert "| as-shipped | float32, none | 2.0 | 3 | 75.0% |" in text
    assert text.rstrip().endswith("| 2 | 1 |")

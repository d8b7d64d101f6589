"""Both servers once on one checkpoint: upstream answers one of two callers, ours answers both."""

from __future__ import annotations

import json
from pathlib import Path

from lab.bench import upstream_server


def test_upstream_keeps_the_second_caller_waiting_and_we_answer_both(tmp_path: Path) -> None:
    words = ["--quick", "--callers", "2", "--threads", "1", "--out", str(tmp_path)]
    assert upstream_server.main(words) == 0
    attempts = json.loads((tmp_path / "upstream-server.json").read_text())["attempts"]
    upstream, ours = attempts["upstream/2/0"], attempts["ours/2/0"]
    assert (upstream["answered"], ours["answered"]) == (1, 2)
    assert upstream["detail"] == "not let in within 8 s"
    assert upstream["frames_answered"] > 0
    assert ours["frames_answered"] > upstream["frames_answered"]
    text = (tmp_path / "upstream-server.md").read_text()
    assert "| 2 | `moshi.server` | 1 of 2 |" in text
    assert "| 2 | `antiphon serve` | 2 of 2 |" in text
    assert (tmp_path / "upstream-server.png").read_bytes().startswith(b"\x89PNG")

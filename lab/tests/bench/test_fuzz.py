"""The fuzzer finds nothing in a bounded run of every target."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXECUTIONS = 2000
BOUNDED = (
    *("chat", "stt", "tts", "live", "realtime", "form", "ogg", "recording"),
    *("voice", "seam", "folder", "config"),
)
"""Untrusted input, and one of each other kind: instrumenting the server takes most of a short run."""


def fuzzed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab.tools.fuzz", *words, "--findings", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("name", BOUNDED)
def test_a_bounded_run_has_no_finding(name: str, tmp_path: Path) -> None:
    run = fuzzed(tmp_path, name, "--executions", str(EXECUTIONS))
    assert run.returncode == 0, run.stdout + run.stderr
    counts = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) executions", run.stdout)]
    assert max(counts) >= EXECUTIONS, run.stdout


def test_an_unknown_target_is_refused_with_those_there_are(tmp_path: Path) -> None:
    run = fuzzed(tmp_path, "chatt")
    assert run.returncode == 2
    assert "there is no target chatt; there are: chat, resume" in run.stderr

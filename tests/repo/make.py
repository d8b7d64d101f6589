"""Runs make from a test, also when the test itself was started by make."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.repo.tracked import ROOT


def run_make(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run make as from a fresh shell: no option and no variable of the make above this test reaches it."""
    return subprocess.run(
        ["make", *words], cwd=cwd, env=fresh(), capture_output=True, text=True, timeout=500, check=False
    )


def fresh() -> dict[str, str]:
    """The environment without options and variables of the make above this test."""
    settable = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    inherited = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", *settable}
    return {name: value for name, value in os.environ.items() if name not in inherited}

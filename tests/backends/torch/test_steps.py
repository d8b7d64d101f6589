"""Runs the interpreted kernels in a separate process, since the interpreter's variable is global."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CHECKS = sorted((Path(__file__).parent / "interpreted").glob("check_*.py"))
ROOT = Path(__file__).parents[3]


def test_the_kernels_pass_their_checks_interpreted() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=550, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"(\d+) passed", run.stdout)
    assert found, run.stdout
    assert int(found[1]) >= 60

"""The kernels around linears, rings and tokens, interpreted in a process of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "interpreted" / "check_steps.py"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("chosen", "least"), [("language_model", 5), ("not language_model", 40)])
def test_the_kernels_pass_their_checks_interpreted(chosen: str, least: int) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"(\d+) passed", run.stdout)
    assert found, run.stdout
    assert int(found[1]) >= least

"""Sums of the largest integers are exact, on this CPU and on one without VNNI."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from shutil import which

from tests.quantize.worst_case import nbits_error, rows_error

ROOT = Path(__file__).parents[2]


def test_the_largest_integers_do_not_saturate_here() -> None:
    assert nbits_error() < 1e-6
    assert rows_error() < 1e-6


def test_they_do_not_saturate_without_vnni() -> None:
    command = [sys.executable, "-m", "tests.quantize.worst_case"]
    emulated = platform.machine() in ("x86_64", "AMD64")
    if emulated:
        emulator = which("qemu-x86_64")
        assert emulator, "this test needs qemu-x86_64 (Debian: qemu-user), to be a CPU without VNNI"
        command = [emulator, "-cpu", "Haswell", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["nbits"] < 1e-6
    assert found["rows"] < 1e-6
    if emulated:  # it is such a CPU: what is known to saturate there does
        saturated, exact = found["control"]
        assert saturated < 0.6 * exact

"""conftest.py fails a run with silently skipped tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"

SKIPPING = {
    "mark": "@pytest.mark.skip(reason='tired')\ndef test_it(): pass",
    "call": "def test_it(): pytest.skip('tired')",
    "fixture": "@pytest.fixture\ndef f(): pytest.skip('tired')\ndef test_it(f): pass",
    "expected_failure": "@pytest.mark.xfail(reason='tired')\ndef test_it(): assert False",
    "unexpected_pass": "@pytest.mark.xfail(reason='tired')\ndef test_it(): pass",
    "whole_module": "pytest.skip('tired', allow_module_level=True)",
    "missing_import": "pytest.importorskip('tired')",
}


def _run_pytest(folder: Path, bodies: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for name, body in bodies.items():
        (folder / f"test_{name}.py").write_text(f"import pytest\n\n{body}\n")
    options = ["-q", "-rA", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir"]
    command = [sys.executable, "-m", "pytest", *options, str(folder), "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def skipping_run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return _run_pytest(tmp_path_factory.mktemp("skipping"), SKIPPING)


@pytest.mark.parametrize("name", SKIPPING)
def test_a_skip_fails_and_says_why(skipping_run: subprocess.CompletedProcess[str], name: str) -> None:
    report = [line for line in skipping_run.stdout.splitlines() if f"test_{name}.py" in line]
    assert any(line.startswith(("FAILED", "ERROR")) for line in report), skipping_run.stdout
    assert not any(line.startswith(("PASSED", "SKIPPED", "XFAIL", "XPASS")) for line in report)


def test_the_run_fails_for_the_skips_alone(skipping_run: subprocess.CompletedProcess[str]) -> None:
    assert skipping_run.returncode == 1
    reasons = [line for line in skipping_run.stdout.splitlines() if line.startswith("a skip that")]
    assert len(reasons) == len(SKIPPING)
    assert all("tired" in reason for reason in reasons)


def test_a_run_without_skips_passes(tmp_path: Path) -> None:
    run = _run_pytest(tmp_path, {"body": "def test_it(): pass"})
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout

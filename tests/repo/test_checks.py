"""``make check`` covers every file."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.repo.make import run_make
from tests.repo.tracked import ROOT, tracked_files


def test_the_types_of_every_file_are_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    folders = [ROOT / name for name in checked]
    files = [path for path in tracked_files() if path.suffix == ".py"]
    assert files
    assert [path for path in files if not any(map(path.is_relative_to, folders))] == []


def test_a_misspelt_word_is_found_in_code_documents_page_and_tests(tmp_path: Path) -> None:
    files = ["README.md", "docs/a.md", "server/antiphon/a.py", "tests/a.py", "web/static/a.js"]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("to and fro, was rec" + "ieved\n")
    command = [sys.executable, "-m", "codespell_lib"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode != 0
    assert sorted(line.partition(":")[0] for line in run.stdout.splitlines()) == [f"./{it}" for it in files]
    assert "bin/codespell\n" in run_make("--dry-run", "check", cwd=ROOT).stdout

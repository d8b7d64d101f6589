"""The Makefile sets up once, again when the pins change, and says so when it cannot."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.make import run_make
from tests.house.tracked import ROOT

PINS = ("Makefile", "pyproject.toml", "constraints.txt")


def _make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_make(*words, cwd=folder)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in PINS:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def _pretend_to_set_up(checkout: Path, verb: str) -> None:
    """Leave the marks that a finished set-up for ``verb`` leaves."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").touch()
    for mark in re.findall(r"touch (\S+)", _make(checkout, "--dry-run", verb).stdout):
        (checkout / mark).touch()


@pytest.mark.parametrize(
    ("verb", "command"),
    [
        ("serve", "antiphon serve"),
        ("test", "python -m pytest -n 2 --dist worksteal -m product"),
        ("test-fast", "python -m pytest -n 2 --dist worksteal -m fast"),
        ("test-lab", "python -m pytest -n 2 --dist worksteal -m lab"),
    ],
)
def test_what_is_set_up_is_not_set_up_again(checkout: Path, verb: str, command: str) -> None:
    before = _make(checkout, "--dry-run", verb).stdout.splitlines()
    assert [line for line in before if " -m venv " in line]
    assert [line for line in before if "pip install" in line and "constraints.txt" in line]
    _pretend_to_set_up(checkout, verb)
    after = _make(checkout, "--dry-run", verb).stdout.splitlines()
    assert not [line for line in after if "pip" in line or "venv .venv" in line]
    assert after[-1].strip() == f".venv/bin/{command}"


@pytest.mark.parametrize("name", PINS)
def test_changed_pins_are_installed(checkout: Path, name: str) -> None:
    _pretend_to_set_up(checkout, "test")
    with (checkout / name).open("a") as pins:
        pins.write("# changed\n")
    assert "pip install" in _make(checkout, "--dry-run", "test").stdout


def test_changed_packages_of_the_page_are_installed(checkout: Path) -> None:
    shutil.copy(ROOT / "package.json", checkout)
    _pretend_to_set_up(checkout, "test")
    assert "npm ci" not in _make(checkout, "--dry-run", "test").stdout
    with (checkout / "package.json").open("a") as packages:
        packages.write("\n")
    assert "npm ci" in _make(checkout, "--dry-run", "test").stdout


def test_a_machine_without_node_is_told(checkout: Path, tmp_path: Path) -> None:
    _pretend_to_set_up(checkout, "test")
    (mark,) = re.findall(r"\.venv/\.web-\d+", " ".join(map(str, (checkout / ".venv").iterdir())))
    (checkout / mark).unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "cksum", "cut", "uname", "env"):
        path = shutil.which(name)
        assert path is not None
        (tools / name).symlink_to(path)
    run = _make(checkout, f"PATH={tools}", f"SHELL={tools}/sh", "PYTHON=python3", mark)
    assert run.returncode != 0
    assert "Node.js 18 or newer and npm (Debian: apt-get install nodejs npm)" in run.stdout


def test_a_machine_without_a_fitting_python_is_told(checkout: Path) -> None:
    run = _make(checkout, "serve", "PYTHON=")
    assert run.returncode != 0
    assert "Antiphon needs Python 3.11 or newer" in run.stdout


def test_help_lists_every_verb(checkout: Path) -> None:
    run = _make(checkout)
    assert run.returncode == 0
    assert re.findall(r"^  make (\S+)", run.stdout, re.MULTILINE) == [
        *(
            "help",
            "serve",
            "demo",
            "test",
            "test-fast",
            "test-lab",
            "check",
            "bench",
            "train",
            "evaluate",
            "clean",
        )
    ]


def test_moshi_and_torch_are_pinned_exactly() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"torch", "moshi", "numpy", "aiohttp", "av", "einops"} <= pins.keys()
    extras = (ROOT / "pyproject.toml").read_text()
    assert f'"moshi=={pins["moshi"]}"' in extras
    assert "+" not in pins["torch"]

"""README.md is executed. The word after the language of a block of commands says how:

``make``    every line is a make command; its recipe is asked for without being run, from nothing. The
            last commands of ``serve`` and ``demo`` are then run for real, in this environment.
``server``  every line is run as it stands, with a server listening where the README says it does.
``by PATH`` needs what a test machine lacks (a microphone); the test module at PATH runs its like.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import Block, read_blocks
from tests.repo.make import run_make
from tests.repo.tracked import ROOT
from tests.serve.process import ROOM
from tests.support.ask import MAX_LATE_SHARE, QUESTIONS
from tests.support.calm import CALM_OPTIONS
from tests.support.launch import free_port, running_server

README = ROOT / "README.md"
BLOCKS = [block for block in read_blocks(README) if block.language == "sh"]
BIN = Path(sys.executable).parent
CALLERS = 4
DEMO_TIMEOUT_S = 500
LISTENING = "http://127.0.0.1:8998"


def _named(block: Block) -> str:
    return f"line {block.line}"


def _with_mark(mark: str) -> list[Block]:
    return [block for block in BLOCKS if block.mark == mark]


def _recipe(command: str, venv: Path) -> list[str]:
    """The commands that make would run, when nothing is set up at ``venv``."""
    run = run_make("--dry-run", f"VENV={venv}", *shlex.split(command)[1:], cwd=ROOT)
    assert run.returncode == 0, f"{command}: {run.stderr}"
    return run.stdout.splitlines()


def _here(command: str, venv: Path) -> str:
    """The same command in the environment that runs this test."""
    return command.replace(f"{venv}/bin/", f"{BIN}/")


def _run(command: str, folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server that `make serve` starts, on a port of ours, with a row for each caller of any block.

    How many rows a machine holds in time is measured at the start, and is the machine's affair.
    """
    folder, port = tmp_path_factory.mktemp("serve"), free_port()
    options = shlex.join(("--port", str(port), "--slots", str(CALLERS), *CALM_OPTIONS, *ROOM))
    (*_, command) = _recipe(f'make serve ARGS="{options}"', folder / "venv")
    words = shlex.split(_here(command, folder / "venv"))
    with running_server(words, port, folder / "log") as server:
        yield server.url


def test_no_block_is_unmarked() -> None:
    for block in BLOCKS:
        kind, _, path = block.mark.partition(" ")
        assert kind in {"make", "server", "by"}, f"{_named(block)}: mark '{block.mark}'"
        assert (kind == "by") == bool(path), _named(block)
        assert block.commands, _named(block)


def test_the_two_commands_come_first() -> None:
    assert [block.commands[0] for block in BLOCKS[:2]] == ["make serve", "make test"]


@pytest.mark.parametrize("block", _with_mark("make"), ids=_named)
def test_make_sets_up_from_nothing(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_INDEX", "https://example.org/cpu")
    for command in map(os.path.expandvars, block.commands):
        recipe = _recipe(command, tmp_path / "venv")
        assert any(f"-m venv {tmp_path}/venv" in line for line in recipe), command
        assert any("pip install" in line and "constraints.txt" in line for line in recipe), command
        assert recipe[-1].startswith(f"{tmp_path}/venv/bin/"), command
        for option in (word for word in shlex.split(command) if word.startswith("PIP_ARGS=")):
            argument = option.removeprefix("PIP_ARGS=")
            assert all(argument in line for line in recipe if "pip install" in line), command


def test_make_serve_serves_the_page_and_all_it_links_to(server_url: str) -> None:
    with urllib.request.urlopen(f"{server_url}/", timeout=120) as answer:
        page = answer.read().decode()
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert {"healthz", "readyz", "metrics", "api/build_info", "api/modules_info"} < set(links)
    for link in links:
        with urllib.request.urlopen(f"{server_url}/{link}", timeout=120) as answer:
            assert answer.status == 200, link


def test_make_demo_demonstrates(tmp_path: Path) -> None:
    """All but lateness, which is the machine's: of that, that the exit code says what the report says."""
    answers = dict(QUESTIONS.values())
    options = shlex.join((*CALM_OPTIONS, *ROOM))
    (*_, command) = _recipe(f'make demo ARGS="{options}"', tmp_path / "venv")
    reply = ROOT / "out" / "demo-reply.wav"
    reply.unlink(missing_ok=True)
    run = _run(_here(command, tmp_path / "venv"), ROOT, DEMO_TIMEOUT_S)
    report = run.stdout + run.stderr
    shown = {line[:30].strip(): line[30:66].strip() for line in run.stdout.splitlines() if line[:1] != "="}
    assert {words: shown.get(words) for words in answers} == answers, report
    verdict = re.search(r"(\d+) frames due, (\d+) lost, (\d+) late;", run.stdout)
    assert verdict is not None, report
    due, lost, late = map(int, verdict.groups())
    assert lost == 0, report
    assert run.returncode == (late > MAX_LATE_SHARE * due), report
    assert ("is the machine busy?" in run.stdout) == (run.returncode != 0), report
    assert reply.stat().st_size > 24_000 * 2 * 10


@pytest.mark.parametrize("block", _with_mark("server"), ids=_named)
def test_commands_against_a_server(block: Block, server_url: str, tmp_path: Path) -> None:
    for command in block.commands:
        assert LISTENING in command, f"{_named(block)}: {command} does not name the server"
        here = _here(command.replace(LISTENING, server_url), Path(".venv"))
        run = _run(here, tmp_path, timeout_s=500)
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark.startswith("by ")], ids=_named)
def test_what_is_tested_elsewhere_is(block: Block) -> None:
    path = ROOT / block.mark.removeprefix("by ")
    assert path.is_file(), _named(block)
    assert path.name.startswith("test_"), _named(block)

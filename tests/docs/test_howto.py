"""The how-to pages: commands, their options and named files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from antiphon.backends.base import Backend
from antiphon.cli import run
from antiphon.serve.hosting.options import parse_command_line
from tests.docs.blocks import read_blocks
from tests.repo.tracked import ROOT

GUIDES = ("install", "quickstart", "gpu", "mac", "cpu", "deploy")
PAGES = [
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *(ROOT / "docs" / f"{name}.md" for name in GUIDES),
]
COMMANDS = [
    command
    for page in PAGES
    for block in read_blocks(page)
    for command in block.commands
    if command.startswith("antiphon ")
]
TOOLS = {
    "antiphon",
    "cd",
    "curl",
    "docker",
    "export",
    "git",
    "journalctl",
    "kubectl",
    "make",
    "source",
    "sudo",
}


def help_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The help of a command whose other arguments argparse has taken."""
    with pytest.raises(SystemExit) as ended:
        run([*argv, "--help-all" if argv[0] == "serve" else "--help"])
    assert ended.value.code == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_a_page_gives_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *argv = shlex.split(command.partition(">>")[0])
    text = help_of(argv, capsys)
    options = [word for word in argv if word.startswith("--")]
    assert [option for option in options if not re.search(rf"{option}\b", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_known_tools_and_files(page: Path) -> None:
    blocks = read_blocks(page)
    shells = [block for block in blocks if block.language == "sh"]
    used = {command.split()[0] for block in shells for command in block.commands}
    assert {tool for tool in used if not tool.startswith(".venv/bin/")} <= TOOLS
    text = page.read_text()
    named = re.findall(r"`((?:server|tests|docs|compose)[\w./-]*\.\w+)`", text)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_a_verb_of_make_is_one() -> None:
    makefile = (ROOT / "Makefile").read_text()
    blocks = [block for page in PAGES for block in read_blocks(page)]
    commands = [shlex.split(it) for block in blocks for it in block.commands if it.startswith("make ")]
    assert len(commands) > 5
    for _, verb, *settings in commands:
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
        for setting in settings:
            name, _, value = setting.partition("=")
            assert re.search(rf"^{name} \?=", makefile, re.MULTILINE), setting
            if name == "ARGS":
                parse_command_line(shlex.split(value))


def test_the_files_to_touch_are_there() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    named = [name for name in re.findall(r"`([\w./-]+/[\w.-]+\.\w+)`", page) if "NAME" not in name]
    roots = (ROOT, ROOT / "server" / "antiphon")
    assert len(named) > 15
    assert [name for name in named if not any((root / name).is_file() for root in roots)] == []


def test_a_backend_has_the_calls_that_its_page_lists() -> None:
    page = (ROOT / "docs" / "howto" / "add-a-backend.md").read_text()
    calls = [name for name in vars(Backend) if not name.startswith("_")]
    assert [name for name in calls if f"`{name}`" not in page] == []

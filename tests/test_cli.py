"""The ``antiphon`` command itself: dispatch, help, errors, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types

import pytest

from antiphon import __version__, cli
from antiphon.errors import ConfigError
from antiphon.log import ERASE


def add_command(monkeypatch: pytest.MonkeyPatch, name: str, main: object) -> dict[str, cli.Command]:
    module = types.ModuleType(f"fake_{name}")
    monkeypatch.setattr(module, "main", main, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return {name: cli.Command(f"{module.__name__}:main", "a command for this test")}


def test_help_shows_commands_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert name in text
        assert command.help in text
    assert "antiphon serve --backend null" in text


def test_no_command_is_a_usage_error_that_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == cli.EXIT_USAGE
    assert "Usage:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"antiphon {__version__}\n"


def test_arguments_and_exit_code_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    commands = add_command(monkeypatch, "echo", main)
    assert cli.run(["echo", "--a", "b"], commands) == 7
    assert seen == [["--a", "b"]]


@pytest.mark.parametrize(("typo", "meant"), [("sevre", "serve"), ("prob", "probe"), ("tlak", "talk")])
def test_a_typo_suggests_the_nearest_command(
    typo: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([typo]) == cli.EXIT_USAGE
    assert capsys.readouterr().err == f"antiphon: no command '{typo}'; did you mean '{meant}'?\n"


def test_a_word_like_nothing_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["zzz"]) == cli.EXIT_USAGE
    known = (
        "there are: bench, canary, doctor, drain, gate, keys, models, probe, quantize, serve, talk, verify"
    )
    assert known in capsys.readouterr().err


def failing(argv: list[str]) -> int:
    raise ConfigError("port = 'x' is not a whole number")


def test_an_error_is_one_line_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = add_command(monkeypatch, "fail", failing)
    assert cli.run(["fail"], commands) == cli.EXIT_USAGE
    assert capsys.readouterr().err == "antiphon: port = 'x' is not a whole number\n"


@pytest.mark.parametrize("debug", [["--log-level", "debug"], ["--log-level=debug"]])
def test_debug_shows_where_an_error_came_from(
    debug: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = add_command(monkeypatch, "fail", failing)
    assert cli.run(["fail", *debug], commands) == cli.EXIT_USAGE
    assert "Traceback" in capsys.readouterr().err


def interrupted(argv: list[str]) -> int:
    raise KeyboardInterrupt


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commands = add_command(monkeypatch, "wait", interrupted)
    assert cli.run(["wait"], commands) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.run(["wait"], commands) == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ERASE  # a progress line gives way to the prompt


METAVARS = {
    *("N", "SECONDS", "MS", "BYTES", "DAYS", "FRACTION", "PORT", "FILE", "FOLDER", "DIR", "MEMORY"),
    *("MODEL", "NAME", "DEVICE", "BACKEND", "RECIPE", "ADDRESS", "HOST", "CIDR", "ORIGIN", "TARGET"),
    *("KEY", "WHAT", "HOW", "LEVEL", "CODE", "TEXT", "REPLY", "URL", "VARIABLE"),
}


@pytest.mark.parametrize("command", [*cli.COMMANDS, "bench slots", "serve --help-all"])
def test_a_value_has_the_name_of_its_unit_or_kind(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.run([*command.split(), "--help"])
    found = re.findall(r"^  (?:-\w, )?--[\w-]+ ([A-Z_]+)\b", capsys.readouterr().out, re.MULTILINE)
    assert set(found) <= METAVARS


LOADING = """
import sys
import threading

from antiphon import cli
from antiphon.backends.onnx.sessions import onnxruntime

loaded = threading.Semaphore(0)


def load():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    while True:
        onnxruntime.InferenceSession("server/antiphon/assets/tiny/decode.onnx", options)
        loaded.release()


def ends(argv):
    threading.Thread(target=load, daemon=True).start()
    for _ in range(3):
        loaded.acquire()
    {ending}


cli.run = ends
cli.main()
"""


@pytest.mark.parametrize(("ending", "code"), [("return 130", 130), ("sys.exit(0)", 0)])
def test_the_end_of_a_process_that_loads_a_model_is_clean(ending: str, code: int) -> None:
    """The interpreter's own end would stop the loading thread in native code, which aborts with 134."""
    script = LOADING.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_reader_who_has_had_enough_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from antiphon import cli; sys.argv = ['antiphon', '--help']; cli.main()"
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (cli.EXIT_PIPE, "")


def test_ctrl_c_while_the_commands_are_imported_is_quiet() -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "antiphon.errors":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from antiphon.start import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (cli.EXIT_INTERRUPTED, "", "")


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = ("numpy", "torch", "aiohttp", "antiphon.serve", "antiphon.engine", "antiphon_client")
    code = f"import sys, antiphon.cli; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""The Makefile installs once, again after changed pins, and reports failures."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest

from tests.repo.make import fresh, run_make
from tests.repo.tracked import ROOT
from tests.support.launch import ANTIPHON, free_port

PINS = ("Makefile", "pyproject.toml", "constraints.txt")
PROGRAMS = ROOT / "tests" / "support" / "system_programs.sh"
NO_GPU = "NVIDIA_GPU=/nowhere"
FOR_TRAINING = {
    "festival",
    "festvox-kdlpc16k",
    "festvox-us-slt-hts",
    "festvox-kallpc16k",
    "default-jre-headless",
}


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
        ("test-fast", "python -m pytest -n 6 --dist worksteal -m fast"),
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


def _installs(checkout: Path, *words: str) -> list[str]:
    """What pip is asked to install for make serve."""
    lines = _make(checkout, "--dry-run", "serve", *words).stdout.splitlines()
    return [shlex.split(line)[-1] for line in lines if "pip install" in line]


@pytest.mark.parametrize(
    ("words", "installed"),
    [
        ((NO_GPU, "MACHINE=Linux-x86_64", "GPU="), "."),
        (("NVIDIA_GPU=/dev/null", "MACHINE=Linux-x86_64"), ".[torch]"),
        (("GPU=GPU 0: NVIDIA H100", "MACHINE=Linux-x86_64"), ".[torch]"),
        ((NO_GPU, "MACHINE=Darwin-arm64"), ".[mlx]"),
        (("NVIDIA_GPU=/dev/null", "EXTRAS="), "."),
        ((NO_GPU, "EXTRAS=torch,otel"), ".[torch,otel]"),
    ],
)
def test_serve_installs_what_the_machine_runs(checkout: Path, words: tuple[str, ...], installed: str) -> None:
    assert _installs(checkout, *words) == [installed]


@pytest.fixture
def null_server(checkout: Path) -> list[str]:
    """The command of a server on a free port that make starts, with the antiphon of this test."""
    _pretend_to_set_up(checkout, "serve")
    _stub(checkout / ".venv" / "bin" / "antiphon", f'exec {shlex.join(ANTIPHON)} "$@"')
    return ["make", "serve", f"ARGS=--backend null --front-ends 0 --port {free_port()}"]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Programs that a test starts get SIGINT, even if the tests themselves ignore it, as a job in the
    background does.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_make_serve_without_an_error(checkout: Path, null_server: list[str]) -> None:
    """A terminal sends the signal to each process of the group; make ends by it: 130 in a shell."""
    with subprocess.Popen(
        null_server, cwd=checkout, env=fresh(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as make:  # fmt: skip
        assert make.stdout is not None
        before = list(takewhile(lambda line: "Ctrl-C stops" not in line, make.stdout))
        os.killpg(make.pid, signal.SIGINT)
        after = make.stdout.read()
    assert make.returncode == -signal.SIGINT, "".join(before)
    assert "event=drained" in after
    assert "make" not in after


def test_make_serve_on_a_taken_port_says_where_options_go(checkout: Path, null_server: list[str]) -> None:
    port = int(null_server[-1].split()[-1])
    with socket.create_server(("127.0.0.1", port)):
        run = _make(checkout, *null_server[1:])
    assert run.returncode == 2
    assert run.stderr.splitlines()[:2] == [
        f"antiphon: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another with --port",
        'make passes options in ARGS: make serve ARGS="--port 9000"',
    ]


def test_another_extra_is_installed_where_the_base_is(checkout: Path) -> None:
    _pretend_to_set_up(checkout, "serve")
    assert _installs(checkout, "EXTRAS=torch,mlx") == [".[torch,mlx]"]


def test_release_leaves_what_was_built_and_its_sums_alone_in_dist(checkout: Path) -> None:
    """What hatchling builds is in test_wheel.py."""
    _pretend_to_set_up(checkout, "release")
    build = '[ "$1 $2 $3 $4" = "-m hatchling build -d" ] && mkdir -p "$5" && cd "$5"'
    files = '[ "$5" = dist ] && echo 1 > antiphon-1.whl && echo 2 > antiphon-1.tar.gz'
    weights = "echo 3 > antiphon_weights-1.whl"
    _stub(checkout / ".venv" / "bin" / "python", f"{build} && {{ {files} || {weights}; }}")
    (checkout / "dist").mkdir()
    (checkout / "weights").mkdir()
    (checkout / "dist" / "antiphon-0.whl").touch()
    run = _make(checkout, "release")
    assert run.returncode == 0, run.stderr
    lines = (checkout / "dist" / "SHA256SUMS").read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(content).hexdigest()}  {name}"
        for name, content in (
            ("antiphon-1.tar.gz", b"2\n"),
            ("antiphon-1.whl", b"1\n"),
            ("antiphon_weights-1.whl", b"3\n"),
        )
    ]
    assert {path.name for path in (checkout / "dist").iterdir()} == {
        "SHA256SUMS",
        "antiphon-1.tar.gz",
        "antiphon-1.whl",
        "antiphon_weights-1.whl",
    }


def _look(folder: Path, *more: str, tier: str = "") -> subprocess.CompletedProcess[str]:
    """Look for the programs of the tests where there are ``more`` and little else."""
    folder.mkdir(exist_ok=True)
    for name in ("bash", *more):
        path = shutil.which(name)
        assert path is not None
        (folder / name).symlink_to(path)
    env = {"PATH": str(folder), "PYTHON": "no-such-python"}
    return subprocess.run(
        [folder / "bash", PROGRAMS, *tier.split()], env=env, capture_output=True, text=True, check=False
    )


def _stub(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_all_missing_programs_are_named_at_once_with_the_command(tmp_path: Path) -> None:
    _stub(tmp_path / "bin" / "apt-get", "exit 1")
    _stub(tmp_path / "bin" / "id", "echo 1000")
    run = _look(tmp_path / "bin")
    assert run.returncode == 1
    missing, command = run.stdout.splitlines()
    names = missing.removeprefix("make test needs what is not installed here: ").split()
    assert {"git", "make", "python3-venv", "prometheus", "qemu-user", "nodejs", "npm", "chromium"} <= set(
        names
    )
    assert not FOR_TRAINING & set(names)
    install = "apt-get install --yes --no-install-recommends ca-certificates"
    assert command == f"On Debian and Ubuntu type: sudo {install} {' '.join(names)}"


def test_the_lab_needs_what_training_uses_too_and_without_apt_there_is_no_command(tmp_path: Path) -> None:
    run = _look(tmp_path / "bin", tier="lab")
    assert run.returncode == 1
    (missing,) = run.stdout.splitlines()
    names = missing.removeprefix("make test-lab needs what is not installed here: ").split()
    assert FOR_TRAINING | {"git", "chromium", "espeak-ng"} <= set(names)


def test_a_voice_that_festival_lists_is_not_missing(tmp_path: Path) -> None:
    _stub(tmp_path / "bin" / "festival", "echo ked_diphone")
    run = _look(tmp_path / "bin", "grep", tier="lab")
    assert "festvox-us-slt-hts" in run.stdout
    assert "festvox-kdlpc16k" not in run.stdout


def test_make_test_lab_looks_for_the_programs_of_the_lab(checkout: Path) -> None:
    assert "system_programs.sh lab" in _make(checkout, "--dry-run", "test-lab").stdout
    assert "system_programs.sh lab" not in _make(checkout, "--dry-run", "test").stdout


def test_root_on_debian_installs_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _stub(tmp_path / "stubs" / "id", "echo 0")
    _stub(tmp_path / "stubs" / "apt-get", f'echo "$@" >> {log}')
    (tmp_path / "stubs" / "bash").symlink_to(shutil.which("bash") or "")
    env = {"PATH": str(tmp_path / "stubs")}
    run = subprocess.run(["bash", PROGRAMS], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 1, "the stub of apt-get installs nothing"
    assert "make test still needs, after the installation: " in run.stdout
    update, install = log.read_text().splitlines()
    assert update == "update -qq"
    assert {"install", "--no-install-recommends", "chromium", "qemu-user"} <= set(install.split())


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
            "docs",
            "bench",
            "stack",
            "train",
            "evaluate",
            "programs",
            "release",
            "try-release",
            "clean",
        )
    ]


def test_moshi_and_torch_are_pinned_exactly() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==([^;\s]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {"torch", "moshi", "numpy", "aiohttp", "av", "einops"} <= pins.keys()
    extras = (ROOT / "pyproject.toml").read_text()
    assert f'"moshi=={pins["moshi"]}"' in extras
    assert "+" not in pins["torch"]


def test_what_make_starts_keeps_compiled_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    rule = "show: ; @echo $${PYTHONDONTWRITEBYTECODE-unset}"
    assert run_make("--eval", rule, "show", cwd=ROOT).stdout == "unset\n"

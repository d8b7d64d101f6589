"""Node.js and Chromium for tests and measurements of the page, or a message on how to install them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.calm import CALM_OPTIONS
from tests.support.launch import port_range, started

ROOT = Path(__file__).parents[2]
NODE_MODULES = ROOT / "node_modules"


class MissingToolError(Exception):
    """A program that pip does not bring is not here; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """How a run of ``node --test`` went, and what it printed."""

    is_green: bool
    tests: int
    report: str


def find_node() -> str:
    """Node.js 18 or newer, with the packages of package.json installed beside it.

    Raises:
        MissingToolError: one of them is missing; the message says what to type.
    """
    node = shutil.which("node")
    if node is None:
        raise MissingToolError("Node.js 18 or newer is needed; on Debian: apt-get install nodejs npm")
    if not (NODE_MODULES / "playwright-core").is_dir():
        raise MissingToolError("the packages of package.json are needed; type: npm ci --ignore-scripts")
    return node


def find_chromium() -> str:
    """The browser: CHROMIUM in the environment, else the first of the usual names.

    Raises:
        MissingToolError: there is none; the message says what to type.
    """
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise MissingToolError("Chromium is needed; on Debian: apt-get install chromium (or set CHROMIUM)")
    return found


def find_firefox() -> str:
    """The other browser: FIREFOX in the environment, else the first of the usual names.

    Raises:
        MissingToolError: there is none; the message says what to type.
    """
    names = (os.environ.get("FIREFOX", ""), "firefox-esr", "firefox")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise MissingToolError("Firefox is needed; on Debian: apt-get install firefox-esr (or set FIREFOX)")
    return found


def browser_env(clip: Path) -> dict[str, str]:
    """What the scripts that drive the browser are told: an interpreter, a browser, what its microphone hears.

    Raises:
        MissingToolError: there is no Chromium.
    """
    return {
        **os.environ,
        "ANTIPHON_TEST_PYTHON": sys.executable,
        "ANTIPHON_TEST_CHROMIUM": find_chromium(),
        "ANTIPHON_TEST_CALM": " ".join(CALM_OPTIONS),
        "ANTIPHON_TEST_FIRST_PORT": str(port_range().start),
        "ANTIPHON_TEST_PORTS": str(len(port_range())),
        "ANTIPHON_TEST_CLIP": str(clip),
    }


def run_node_tests(paths: Sequence[Path], env: Mapping[str, str], timeout_s: float) -> NodeRun:
    """Run test files one after the other; they have ``timeout_s`` for all of it."""
    command = [find_node(), "--test", "--test-reporter=tap", *map(str, paths)]
    # A group of its own, so that servers and browsers of a run that hangs end with it.
    options = {"cwd": ROOT, "env": dict(env), "start_new_session": True}
    with started(command, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            report = process.communicate(timeout=timeout_s)[0].decode(errors="replace")
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            report = process.communicate()[0].decode(errors="replace")
            return NodeRun(False, 0, f"not done within {timeout_s:g} s:\n{report}")
    counts = {name: int(count) for name, count in re.findall(r"^# (tests|skipped|todo) (\d+)", report, re.M)}
    is_whole = counts.get("tests", 0) > 0 and counts.get("skipped") == counts.get("todo") == 0
    return NodeRun(process.returncode == 0 and is_whole, counts.get("tests", 0), report)

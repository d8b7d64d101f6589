"""Node.js and Chromium for the tests of the page, or a sentence that says what to install."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.house.tracked import ROOT

NODE_MODULES = ROOT / "node_modules"


@dataclass(frozen=True, slots=True)
class NodeRun:
    """How a run of ``node --test`` went, and what it printed."""

    is_green: bool
    tests: int
    report: str


def find_node() -> str:
    """Node.js 18 or newer, with the packages of package.json installed beside it.

    Raises:
        AssertionError: one of them is missing; the message says what to type.
    """
    node = shutil.which("node")
    assert node, "the tests of the page need Node.js 18 or newer; on Debian: apt-get install nodejs npm"
    packages = NODE_MODULES / "playwright-core"
    assert packages.is_dir(), "the tests of the page need their packages; type: npm ci --ignore-scripts"
    return node


def find_chromium() -> str:
    """The browser: CHROMIUM in the environment, else the first of the usual names.

    Raises:
        AssertionError: there is none; the message says what to type.
    """
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    assert found, "the tests of the page need Chromium; on Debian: apt-get install chromium (or set CHROMIUM)"
    return found


def run_node_tests(paths: Sequence[Path], env: Mapping[str, str], timeout_s: float) -> NodeRun:
    """Run test files one after the other; they have ``timeout_s`` for all of it."""
    command = [find_node(), "--test", *map(str, paths)]
    # A group of its own, so that servers and browsers of a run that hangs end with it.
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(env),
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        report, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        report, _ = process.communicate()
        return NodeRun(False, 0, f"not done within {timeout_s:g} s:\n{report}")
    counts = {name: int(count) for name, count in re.findall(r"^[#ℹ] (tests|skipped|todo) (\d+)", report, re.M)}
    is_whole = counts.get("tests", 0) > 0 and counts.get("skipped") == counts.get("todo") == 0
    return NodeRun(process.returncode == 0 and is_whole, counts.get("tests", 0), report)

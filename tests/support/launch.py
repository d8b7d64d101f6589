"""A server process: started on a free port, awaited, and always stopped."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ANTIPHON = (sys.executable, "-c", "from antiphon.cli import main; main()")
"""The `antiphon` command of this interpreter's environment."""

FIRST_PORT, PORTS_EACH, WORKERS = 12_000, 2000, 10
"""Below those that Linux gives to whoever leaves the choice to it."""

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1
LOG_LINES = 20


class LaunchError(Exception):
    """The server did not start; the message says why, with the end of its log."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that accepts callers at ``url``."""

    url: str
    process: subprocess.Popen[bytes]


def free_port() -> int:
    """A port of this machine that nobody listens on; until a server does, nobody else is given it."""
    while True:
        port = next(_ports())
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return port


@cache
def _ports() -> Iterator[int]:
    """The ports of this process of the tests, in any order, each once before any again."""
    return itertools.cycle(random.sample(port_range(), PORTS_EACH))


def port_range() -> range:
    """The ports that this process of the tests, and what it starts, may choose from."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    first = FIRST_PORT + worker * PORTS_EACH
    return range(first, first + PORTS_EACH)


@contextmanager
def running_server(
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    answers: str = "/readyz",
    process_group: int | None = None,
) -> Iterator[RunningServer]:
    """The server that ``command`` starts on ``port``, once ``answers`` gives any answer below 500.

    What it prints goes to ``log``. Raises LaunchError when it ends before that, or does not come so far.
    """
    with (
        log.open("wb") as output,
        started(command, stdout=output, stderr=subprocess.STDOUT, process_group=process_group) as process,
    ):
        server = RunningServer(f"http://127.0.0.1:{port}", process)
        _wait_until_it_answers(server, answers, log)
        yield server


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these options of Popen, which ends with the block: terminated, at last killed.

    A signal whose handler raises while the process is being started leaves no process.
    """
    with ExitStack() as stack:
        with held_signals():
            process = stack.enter_context(subprocess.Popen(list(command), **options))
            stack.callback(_end, process)
        yield process


@contextmanager
def held_signals() -> Iterator[None]:
    """Run the Python handlers of SIGINT and SIGTERM only at the end of the block.

    A signal mask instead would be inherited by the processes that the block starts.
    """
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # the only one in which handlers run
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_it_answers(server: RunningServer, path: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _does_answer(server.url + path):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        if server.process.poll() is not None:
            raise LaunchError(f"the server ended with exit code {server.process.returncode}:\n{tail}")
        if time.monotonic() > deadline_s:
            raise LaunchError(f"the server did not answer within {START_TIMEOUT_S:.0f} s:\n{tail}")
        time.sleep(POLL_S)


def _does_answer(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:  # refused, reset, timed out: it is not there yet
        return False

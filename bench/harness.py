"""What every benchmark needs: a server of its own, a probe of it, the machine's name, results on disk."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from antiphon.serve.http import cpu_name

ANTIPHON = (sys.executable, "-c", "from antiphon.cli import main; main()")
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1

Values: TypeAlias = dict[str, Any]


class BenchError(Exception):
    """A benchmark cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process that accepts callers."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """CPU time it has used, all threads together."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Memory it holds now."""
        return int(self.process.memory_info().rss)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running_server(
    command: Callable[[int], Sequence[str]],
    log: Path,
    *,
    answers: str = "/readyz",
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningServer]:
    """The server that ``command(port)`` starts, once ``answers`` gives any answer below 500; always stopped.

    ``environment`` is added to this process's own.

    Raises:
        BenchError: it ended, or did not answer in time; with the end of its log.
    """
    port = free_port()
    with log.open("ab") as output:
        server = subprocess.Popen(
            list(command(port)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until(lambda: _does_answer(url + answers), server, log)
        yield RunningServer(url, psutil.Process(server.pid))
    finally:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until(is_so: Callable[[], bool], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        if server.poll() is not None:
            raise BenchError(f"the server ended with exit code {server.returncode}:\n{tail}")
        if time.monotonic() > deadline_s:
            raise BenchError(f"the server did not answer within {START_TIMEOUT_S:.0f} s:\n{tail}")
        time.sleep(POLL_S)


def _does_answer(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (urllib.error.URLError, OSError):
        return False


def serve_command(*options: str) -> Callable[[int], list[str]]:
    """``antiphon serve`` with these options, on whatever port it is given."""
    return lambda port: [*ANTIPHON, "serve", "--port", str(port), "--log-level", "warning", *options]


def probe(url: str, *options: str) -> Values:
    """Run ``antiphon probe`` in a process of its own and return its JSON.

    Raises:
        BenchError: it could not run; broken limits are no error here.
    """
    command = [*ANTIPHON, "probe", url, "--quiet", "--json", "-", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise BenchError(f"the probe ended with exit code {done.returncode}: {done.stderr.strip()}")
    values: Values = json.loads(done.stdout)
    return values


def machine() -> Values:
    """The machine and the versions that numbers depend on."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "versions": {
            name: _version(name) for name in ("antiphon", "aiohttp", "numpy", "av", "torch", "moshi")
        },
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


class Results:
    """A benchmark's results in a JSON file that is whole after every change, so that a run can be resumed.

    ``attempts`` are kept by a key that says what was tried; with ``resume`` those of an earlier run with
    the same ``settings`` are found again.
    """

    def __init__(self, path: Path, *, settings: Mapping[str, Any], resume: bool) -> None:
        """Start anew, or from what ``path`` holds."""
        self.path = path
        self.values: Values = {
            "command": " ".join(["python -m", *_module_and_arguments()]),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "settings": dict(settings),
            "attempts": {},
        }
        if resume and path.is_file():
            earlier = json.loads(path.read_text())
            if earlier.get("settings") == json.loads(json.dumps(dict(settings))):
                self.values = earlier

    def attempt(self, key: str, run: Callable[[], Values]) -> Values:
        """What ``run`` returns, or what it returned under this key before."""
        attempts: Values = self.values["attempts"]
        if key not in attempts:
            attempts[key] = run()
            self.save()
        found: Values = attempts[key]
        return found

    def save(self) -> None:
        """Write everything, in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            file.write(json.dumps(self.values, indent=2) + "\n")
        Path(file.name).replace(self.path)


def _module_and_arguments() -> list[str]:
    return [f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]


def tell(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def machine_line(values: Values) -> str:
    """The machine in a line, for a report."""
    found = values["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    memory_gib = found["memory_bytes"] / 2**30
    return (
        f"{found['cpu']}, {found['cores']} cores, {memory_gib:.1f} GiB, {found['system']}, "
        f"Python {found['python']}; {versions}"
    )

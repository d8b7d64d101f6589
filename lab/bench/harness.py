"""Common parts of benchmarks: a server, a probe of it, the machine's name, and results on disk."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from antiphon.backends.machine import cpu_name
from lab.bench.neighbours import Neighbours
from tests.support import launch
from tests.support.launch import ANTIPHON, free_port

BUSY_SHARE = 0.3
"""A load average above this share of the cores comes from other processes."""

PACKAGES = ("antiphon", "aiohttp", "numpy", "av", "onnxruntime", "torch", "moshi")
"""Packages whose versions affect the numbers."""

Values: TypeAlias = dict[str, Any]


class BenchError(Exception):
    """A benchmark cannot continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process that accepts callers."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server and its child processes, all threads together.

        Raises:
            BenchError: it is gone.
        """
        with _alive():
            return sum(cpu_s_of(each) for each in (self.process, *self.process.children()))

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the server, the first process first."""
        return [self.process, *self.process.children(recursive=True)]

    def rss_bytes(self) -> int:
        """Return the resident memory of the server's first process.

        Raises:
            BenchError: it is gone.
        """
        with _alive():
            return int(self.process.memory_info().rss)


def cpu_s_of(process: psutil.Process) -> float:
    """Return the CPU seconds of one process, all threads together."""
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _alive() -> Iterator[None]:
    try:
        yield
    except psutil.Error as error:
        raise BenchError(f"the server is gone: {error}") from error


@contextmanager
def running_server(
    command: Callable[[int], Sequence[str]], log: Path, *, answers: str = "/readyz"
) -> Iterator[RunningServer]:
    """Run the server of ``command(port)``; yields it once ``answers`` returns a status below 500, and always
    stops it.

    Raises:
        BenchError: it ended, or did not answer in time; with the end of its log.
    """
    port = free_port()
    with ExitStack() as stack:
        try:
            server = stack.enter_context(launch.running_server(command(port), port, log, answers=answers))
        except launch.LaunchError as error:
            raise BenchError(str(error)) from error
        yield RunningServer(server.url, psutil.Process(server.process.pid))


@contextmanager
def terminable(name: str) -> Iterator[None]:
    """Unwind a benchmark that is terminated or interrupted, so that its server ends too.

    Raises:
        SystemExit: with code 1 for a BenchError, 130 or 143 for a signal; the next step is printed.
    """

    def unwind(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    except BenchError as error:
        tell(f"{name}: {error}")
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        tell(f"{name}: interrupted")
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def serve_command(*options: str) -> Callable[[int], list[str]]:
    """Return a function from a port to the command ``antiphon serve`` with these options."""
    return lambda port: [*ANTIPHON, "serve", "--port", str(port), "--log-level", "warning", *options]


def probe(url: str, *options: str) -> Values:
    """Run ``antiphon probe`` in a separate process and return its JSON.

    Raises:
        BenchError: it could not run; exceeded limits are no error here.
    """
    command = [*ANTIPHON, "probe", url, "--quiet", "--json", "-", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise BenchError(f"the probe ended with exit code {done.returncode}: {done.stderr.strip()}")
    values: Values = json.loads(done.stdout)
    return values


def machine() -> Values:
    """Return the machine and the versions that affect the numbers."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


class Results:
    """A benchmark's results in a JSON file that is complete after every change, so that a run can be resumed.

    ``attempts`` are stored by a key that describes the attempt, and ``others_cores`` is the number of cores
    that other processes kept busy meanwhile. With ``resume`` the attempts of an earlier run with the same
    ``settings`` are reused, except those during which other processes took more than ``most_others_cores``.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: Mapping[str, Any],
        resume: bool,
        most_others_cores: float = math.inf,
        neighbours: Callable[[], Neighbours] = Neighbours,
    ) -> None:
        """Start empty, or with the content of ``path``."""
        self.path, self._most_cores, self._neighbours = path, most_others_cores, neighbours
        self.values: Values = {
            "command": " ".join(["python -m", *_module_and_arguments()]),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "settings": dict(settings),
            "attempts": {},
            "others_cores": {},
        }
        if resume and path.is_file():
            earlier = json.loads(path.read_text())
            if earlier.get("settings") == json.loads(json.dumps(dict(settings))):
                self.values |= earlier
                self._drop_disturbed()

    def _drop_disturbed(self) -> None:
        for key, cores in self.values["others_cores"].items():
            if cores > self._most_cores and self.values["attempts"].pop(key, None) is not None:
                tell(f"{key}: other processes took {cores:.2f} cores; it is measured again")

    def attempt(self, key: str, run: Callable[[], Values]) -> Values:
        """Return the result stored under ``key``, or run ``run`` and store its result."""
        attempts: Values = self.values["attempts"]
        if key not in attempts:
            others = self._neighbours()
            attempts[key] = run()
            cores = self.values["others_cores"][key] = round(others.cores(), 3)
            if cores > self._most_cores:
                tell(f"{key}: other processes took {cores:.2f} cores meanwhile; --resume measures it again")
            self.save()
        found: Values = attempts[key]
        return found

    def save(self) -> None:
        """Write all results to the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            file.write(json.dumps(self.values, indent=2) + "\n")
        Path(file.name).replace(self.path)


def _module_and_arguments() -> list[str]:
    return [f"lab.bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]]


def tell(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def warn_if_busy() -> None:
    """Print a warning if something else is running here, since it affects the numbers."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cores:
        tell(f"warning: the load average is {load:.1f} on {cores} cores; these numbers need a quiet machine")


def machine_line(values: Values) -> str:
    """Return the machine as one line of a report."""
    found = values["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    memory_gib = found["memory_bytes"] / 2**30
    others = values.get("others_cores", {}).values()
    taken = f"; other processes took at most {max(others):.2f} cores meanwhile" if others else ""
    return (
        f"{found['cpu']}, {found['cores']} cores, {memory_gib:.1f} GiB, {found['system']}, "
        f"Python {found['python']}; {versions}{taken}"
    )

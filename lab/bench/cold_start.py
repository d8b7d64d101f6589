"""Measures the size of the base package and its start-up time, installed by pip into a fresh environment.

    python -m lab.bench.cold_start                     installs, about a minute; then five starts, and imports
    python -m lab.bench.cold_start --model echo --runs 9
    python -m lab.bench.cold_start --venv out/base     an environment that is kept, and found again
    python -m lab.bench.cold_start --extra tts         the size of the package with an extra

It needs the network, or a pip that finds the pinned packages. Without --extra it uses only the base package,
without torch. Sizes are those of the files that pip reports as installed, including byte code, without pip
itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from antiphon.models.source import DEFAULT_MODEL
from lab.bench.harness import (
    PACKAGES,
    BenchError,
    Results,
    Values,
    machine_line,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.pages import write_page
from lab.bench.turns import summary
from tests.support.launch import START_TIMEOUT_S, free_port, started

ROOT = Path(__file__).resolve().parents[2]
OURS = "antiphon"
POLL_S = 0.005
IMPORTS = "antiphon.cli, antiphon.serve.hosting.main, antiphon.backends.onnx.loading"
"""The modules that `antiphon serve` imports before it listens."""
TIMED_IMPORT = f"import time; s = time.perf_counter(); import {IMPORTS}; print(time.perf_counter() - s)"
LARGEST = 8
"""Number of the largest packages that are named."""


def install(folder: Path, extra: str | None = None) -> Path:
    """Install the package, with an extra or not, into a virtual environment, unless it exists; returns the
    folder of its packages.

    Raises:
        BenchError: pip failed; with the end of its output.
    """
    if not (folder / "bin" / OURS).exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [
            str(folder / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--quiet",
        ]
        command = [
            *pip,
            "--constraint",
            str(ROOT / "constraints.txt"),
            f"{ROOT}[{extra}]" if extra else str(ROOT),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"pip ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    (site,) = (folder / "lib").glob("python3*/site-packages")
    return site


INSTALLERS = frozenset({"pip", "setuptools"})
"""Packages of a new environment that a server does not need."""


def installed_bytes(site: Path) -> dict[str, int]:
    """Return the bytes of the files of each distribution in ``site``, by name, without installers."""
    sizes = {}
    for found in metadata.distributions(path=[str(site)]):
        name = found.metadata["Name"]
        if name not in INSTALLERS:
            paths = {Path(str(found.locate_file(file))) for file in found.files or ()}
            sizes[name] = sum(path.stat().st_size for path in paths if path.is_file())
    return sizes


def installed_versions(site: Path) -> dict[str, str]:
    """Return the versions of the :data:`PACKAGES` that are installed in ``site``, by name."""
    found = {entry.metadata["Name"]: entry.version for entry in metadata.distributions(path=[str(site)])}
    return {name: found[name] for name in PACKAGES if name in found}


def imported_s(python: Path) -> float:
    """Measure the seconds in which a fresh process imports the server's modules, by its own clock."""
    done = subprocess.run(
        [str(python), "-I", "-c", TIMED_IMPORT], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"the import ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return float(done.stdout)


def ready_s(antiphon: Path, model: str) -> float:
    """Measure the seconds from the start of ``antiphon serve`` to the first status 200 of ``/readyz``.

    Raises:
        BenchError: it ended early, or was not ready in time.
    """
    port = free_port()
    command = [str(antiphon), "serve", "--model", model, "--port", str(port), "--log-level", "warning"]
    start_s = time.perf_counter()
    with running(command) as process:
        while not is_ready(port):
            if process.poll() is not None:
                raise BenchError(f"antiphon serve ended with exit code {process.returncode}")
            if time.perf_counter() - start_s > START_TIMEOUT_S:
                raise BenchError(f"antiphon serve was not ready within {START_TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        return time.perf_counter() - start_s


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process without PYTHONPATH in its environment, and stop it at the end."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean) as process:
        yield process


def is_ready(port: int) -> bool:
    """Whether a server on this port admits callers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # refused, reset, timed out, or 503
        return False


def render(values: Values) -> str:
    """Return the results in Markdown; the README quotes the second paragraph."""
    installed: Mapping[str, int] = values["attempts"]["installed_bytes"]
    total, ours = sum(installed.values()) / 1e6, installed[OURS] / 1e6
    starts, imports = values["attempts"]["ready"], values["attempts"]["import"]
    extra = values["settings"]["extra"]
    package = f"The package with `[{extra}]`" if extra else "The base package serves on a CPU without PyTorch"
    quoted = (
        f"{package}: {total:.0f} MB installed, {ours:.0f} of them "
        f"ours. `antiphon serve` imports in {imports['median_ms'] / 1000:.2f} s what it serves with, and is "
        f"ready {starts['median_ms'] / 1000:.2f} s after it was started ({_range_s(starts)}) with "
        f"`{values['settings']['model']}`."
    )
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. Medians of {starts['runs']} starts after one that "
        f"does not count; imports {_range_s(imports)}."
    )
    largest = sorted(installed.items(), key=lambda item: -item[1])[:LARGEST]
    table = ["| package | MB |\n|---|---|", *(f"| {name} | {size / 1e6:.1f} |" for name, size in largest)]
    return "\n\n".join(["# Size and start of the base package", about, quoted, "\n".join(table)]) + "\n"


def _range_s(found: Values) -> str:
    low, high = found["quartiles_ms"]
    return f"quartiles {low / 1000:.2f} to {high / 1000:.2f} s"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parse(argv)
    name = f"cold-start-{options.extra}" if options.extra else "cold-start"
    settings = {"runs": options.runs, "model": options.model, "extra": options.extra}
    results = Results(options.out / f"{name}.json", settings=settings, resume=False)
    warn_if_busy()
    with terminable("lab.bench.cold_start"), tempfile.TemporaryDirectory() as scratch:
        folder = options.venv or Path(scratch) / "venv"
        tell("installing")
        found = results.values["attempts"]
        site = install(folder, options.extra)
        found["installed_bytes"] = installed_bytes(site)
        results.values["machine"]["versions"] = installed_versions(site)
        tell("importing and starting")
        python, antiphon = folder / "bin" / "python", folder / "bin" / OURS
        imports = [imported_s(python) for _ in range(options.runs + 1)][1:]
        starts = [ready_s(antiphon, options.model) for _ in range(options.runs + 1)][1:]
        found["import"], found["ready"] = (summary([1000 * s for s in times]) for times in (imports, starts))
        results.save()
    print(write_page(options.out / f"{name}.md", render(results.values)), end="")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.cold_start", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="[%(default)s]")
    parser.add_argument("--runs", type=int, default=5, help="starts, and imports [%(default)s]")
    parser.add_argument("--extra", help="an extra of pyproject.toml to install with it, such as tts [none]")
    parser.add_argument("--venv", type=Path, help="an environment to keep, or one that was [a new one]")
    options = parser.parse_args(argv)
    if options.extra and options.venv and options.venv.exists():
        parser.error(f"--extra {options.extra}: {options.venv} is already installed; name a new --venv")
    return options


if __name__ == "__main__":
    sys.exit(main())

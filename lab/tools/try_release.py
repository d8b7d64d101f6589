"""Install the wheels in dist/ as a user would, and call the server: ``make try-release``.

A package index of the wheels in dist/ is written to out/release/simple; everything else comes from the public
index. pip installs ``antiphon`` into an empty environment, ``uvx`` runs it from an empty cache, and each
server answers a probe. Prints the seconds of each step.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.launch import free_port, running_server

ROOT: Final = Path(__file__).resolve().parents[2]
DIST: Final = ROOT / "dist"
OUT: Final = ROOT / "out" / "release"
MOST_BYTES: Final = 100_000_000
"""Most bytes of one file: the limit of the public index."""

PROBE: Final = ("--sessions", "1", "--seconds", "5", "--max-failed", "0", "--max-rejected", "0", "--quiet")


def check_sizes(dist: Path) -> None:
    """Raise SystemExit if there is no wheel, or a file that an index would reject."""
    if not list(dist.glob("antiphon-*.whl")) or not list(dist.glob("antiphon_weights-*.whl")):
        raise SystemExit(f"no wheels in {dist}: make release")
    for path in sorted(dist.iterdir()):
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{path.name} has {size:,} bytes, at most {MOST_BYTES:,} are accepted")
        print(f"{size / 1e6:8.1f} MB  {path.name}")


def write_index(dist: Path, index: Path) -> str:
    """Write a package index (PEP 503) of these wheels; returns its URL."""
    for wheel in dist.glob("*.whl"):
        folder = index / wheel.name.split("-")[0].replace("_", "-")
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f'<a href="{wheel.resolve().as_uri()}#sha256={digest}">{wheel.name}</a>\n'
        (folder / "index.html").write_text(f"<!doctype html>\n{link}")
    return index.resolve().as_uri()


def timed(what: str, command: Sequence[str | Path]) -> None:
    """Run a command, and print its seconds; raise SystemExit if it fails."""
    begun_s = time.monotonic()
    run = subprocess.run([*map(str, command)], cwd=OUT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{what}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
    print(f"{time.monotonic() - begun_s:8.1f} s   {what}", flush=True)


def serve_and_probe(what: str, command: Sequence[str | Path], antiphon: Path) -> None:
    """Start a server with ``command serve``, wait until it is ready, and run a call with it."""
    port, begun_s = free_port(), time.monotonic()
    serve = [*map(str, command), "serve", "--port", str(port)]
    with running_server(serve, port, OUT / "serve.log") as server:
        print(f"{time.monotonic() - begun_s:8.1f} s   {what} is ready", flush=True)
        timed(f"a call of 5 s to {what}", [antiphon, "probe", server.url, *PROBE])


def main() -> int:
    """Install the built packages from a local index with pip and uv, and run a call with each."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_", "PYTHONPATH"))]:
        if name != "PIP_CERT":
            del os.environ[name]
    os.environ |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_CACHE_DIR": str(OUT / "uv")}
    check_sizes(DIST)
    shutil.rmtree(OUT, ignore_errors=True)
    index = write_index(DIST, OUT / "simple")
    venv = OUT / "venv"
    timed("python -m venv", [sys.executable, "-m", "venv", venv])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    timed("pip install antiphon", [*pip, "--extra-index-url", index, "antiphon"])
    antiphon = venv / "bin" / "antiphon"
    timed("antiphon --version", [antiphon, "--version"])
    serve_and_probe("antiphon serve", [antiphon], antiphon)
    timed("pip install antiphon-weights", [*pip, "--no-deps", "--index-url", index, "antiphon-weights"])
    uvx = [str(Path(sys.executable).parent / "uv"), "tool", "run", "--python", sys.executable]
    uvx += ["--index", index, "antiphon"]
    serve_and_probe("uvx antiphon serve", uvx, antiphon)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One server, one caller, one report: start `antiphon serve`, speak a clip to it, keep what it answers.

Usage: python tools/demo.py [--audio FILE] [--out REPLY.wav] [options of `antiphon serve`]

Exits with 0 when every frame was answered, in order and in time, and leaves no server behind.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANTIPHON = [sys.executable, "-c", "from antiphon.cli import main; main()"]
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class DemoError(Exception):
    """The server did not start; the message says why."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Return once the server admits callers. Raises DemoError when it ends or takes too long."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if server.poll() is not None:
            raise DemoError(f"the server ended with exit code {server.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise DemoError(f"the server was not ready after {START_TIMEOUT_S:.0f} s:\n{log.read_text()}")


@contextmanager
def running_server(command: list[str], port: int, log: Path) -> Iterator[str]:
    """The server that ``command`` starts on ``port``, once it is ready, as its URL.

    It is stopped whatever happens. Its output goes to ``log``. Raises DemoError when it does not start.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, server, log)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Speak a clip to a fresh server and keep its reply.")
    parser.add_argument("--audio", type=Path, help="what to say: WAV, MP3, FLAC or Ogg [a clip of our own]")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo-reply.wav"), help="the reply [%(default)s]"
    )
    args, serve_options = parser.parse_known_args(argv)
    if args.audio is not None and not args.audio.is_file():
        parser.error(f"there is no file {args.audio}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log = args.out.with_name("demo-server.log")
    # A terminated demo unwinds like an interrupted one, so that its server goes with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"==> starting a server (its log: {log})", flush=True)
    port = free_port()
    server = [*ANTIPHON, "serve", "--port", str(port), *serve_options]
    try:
        with running_server(server, port, log) as url:
            print(f"==> speaking to {url}", flush=True)
            probe = [*ANTIPHON, "probe", url, "--sessions", "1", "--out", str(args.out)]
            probe += ["--audio", str(args.audio)] if args.audio is not None else []
            probe += ["--max-lost", "0", "--max-late", "0", "--max-misplaced", "0"]
            code = subprocess.run(probe, check=False).returncode
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(f"==> the reply: {args.out}" if code == 0 else "==> not every frame came back in time")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

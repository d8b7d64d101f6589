"""One server, one caller, one report: start `antiphon serve`, ask it questions, keep what it answers.

Usage: python -m lab.tools.demo [--audio FILE] [--out REPLY.wav] [options of `antiphon serve`]

The default model is asked the questions of the clips, by voice. Another model, or another clip, is a call of
the probe. Exits with 0 when every answer was right, or every frame of a call answered in order and in time,
and leaves no server behind.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.launch import ANTIPHON, LaunchError, free_port, running_server

FAULTLESS = ("--max-lost", "0", "--max-late", "0", "--max-misplaced", "0")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Speak to a fresh server and keep its reply.")
    parser.add_argument("--audio", type=Path, help="what to say: WAV, MP3, FLAC or Ogg [a few questions]")
    parser.add_argument(
        "--out", type=Path, default=Path("out/demo-reply.wav"), help="the reply [%(default)s]"
    )
    args, serve_options = parser.parse_known_args(argv)
    if args.audio is not None and not args.audio.is_file():
        parser.error(f"there is no file {args.audio}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log, port = args.out.with_name("demo-server.log"), free_port()
    # A terminated demo unwinds like an interrupted one, so that its server goes with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"==> starting a server (its log: {log})", flush=True)
    command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1", *serve_options]
    try:
        with running_server(command, port, log) as server:
            print(f"==> speaking to {server.url}", flush=True)
            command = caller(server.url, args.audio, args.out, serve_options)
            code = subprocess.run(command, check=False).returncode
    except LaunchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    if args.out.is_file():
        print(f"==> the reply: {args.out}")
    if code:
        print("==> the demonstration failed: see above")
    return code


def caller(url: str, audio: Path | None, out: Path, serve_options: Sequence[str]) -> list[str]:
    """The command that speaks to the server: questions for the default model, the probe for others."""
    is_default = not any(option.split("=")[0] in ("--model", "--config") for option in serve_options)
    if audio is None and is_default:
        return [sys.executable, "-m", "tests.support.ask", url, "--out", str(out)]
    said = ["--audio", str(audio)] if audio is not None else []
    return [*ANTIPHON, "probe", url, "--sessions", "1", *said, "--out", str(out), *FAULTLESS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

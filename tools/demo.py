"""One server, one caller, one report: start `antiphon serve`, speak a clip to it, keep what it answers.

Usage: python -m tools.demo [--audio FILE] [--out REPLY.wav] [options of `antiphon serve`]

Exits with 0 when every frame was answered, in order and in time, and leaves no server behind.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from tools.launch import ANTIPHON, LaunchError, free_port, running_server

FAULTLESS = ("--max-lost", "0", "--max-late", "0", "--max-misplaced", "0")


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
    log, port = args.out.with_name("demo-server.log"), free_port()
    # A terminated demo unwinds like an interrupted one, so that its server goes with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"==> starting a server (its log: {log})", flush=True)
    command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1", *serve_options]
    try:
        with running_server(command, port, log) as server:
            print(f"==> speaking to {server.url}", flush=True)
            audio = ["--audio", str(args.audio)] if args.audio is not None else []
            probe = [*ANTIPHON, "probe", server.url, "--sessions", "1", *audio, "--out", str(args.out)]
            code = subprocess.run([*probe, *FAULTLESS], check=False).returncode
    except LaunchError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(f"==> the reply: {args.out}" if code == 0 else "==> not every frame came back in time")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

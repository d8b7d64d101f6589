"""Times the page: from the press to the first received sound, and the pictures that it draws per second.

Usage: python -m lab.tools.page_speed [--rounds N]

Every second press is a question's, the others are the button's; each is a separate call, with the built-in
model on this machine. Pictures are counted for eight seconds of the call. A browser without a screen draws at
most 60 a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon.audio.wav import write_wav
from antiphon_client.clip import load_clip
from tests.support.caller import SAMPLE_RATE
from tests.support.launch import ANTIPHON, free_port, running_server
from tests.support.node import browser_env, find_node

SCRIPT = Path(__file__).with_suffix(".js")


def main(argv: list[str]) -> int:
    """Start a server and a browser, press, and print a line for each call."""
    parser = argparse.ArgumentParser(
        description="Measure the time from a press of the page's button to the first sound."
    )
    parser.add_argument("--rounds", type=int, default=10, help="calls [%(default)s]")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        clip, port = Path(scratch) / "clip.wav", free_port()
        write_wav(clip, load_clip(None), SAMPLE_RATE)
        command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1"]
        with running_server(command, port, Path(scratch) / "server.log") as server:
            script = [find_node(), str(SCRIPT), server.url, str(options.rounds)]
            run = subprocess.run(script, env=browser_env(clip), stdout=subprocess.PIPE, text=True, check=True)
    for line in run.stdout.splitlines():
        call = json.loads(line)
        print(
            f"{call['pressed']:<8}  first sound after {call['soundMs']:4.0f} ms, "
            f"{call['perS']:4.1f} pictures a second, the longest wait {call['longestMs']:3.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

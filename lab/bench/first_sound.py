"""Measures the time from the press of the page's button to the first sound, over a WebSocket and by WebRTC.

    python -m lab.bench.first_sound
    python -m lab.bench.first_sound --presses 2

Chromium's microphone hears a voice without pauses, and the built-in model ``echo`` repeats it; each press has
a new page. Microphone, loudspeaker, model and the browser's own buffers are part of the time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.audio.wav import write_wav
from lab.bench.harness import Values, running_server, serve_command, warn_if_busy
from tests.support.calm import CALM_OPTIONS
from tests.support.node import browser_env, find_node

SCRIPT: Final = Path(__file__).with_suffix(".js")
RATE: Final = 24_000
FORMATS: Final = ("opus", "webrtc")
OPTIONS: Final = (*CALM_OPTIONS, "--model", "echo", "--slots", "2", "--webrtc", "2")


def main() -> None:
    """Measure, and print a JSON line for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--presses", type=int, default=20, help="of each format [%(default)s]")
    given = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.wav"
        times = np.arange(3 * RATE) / RATE
        waves = [np.sin(2 * np.pi * 150 * number * times) / number for number in range(1, 20)]
        write_wav(clip, (0.2 * np.sum(waves, axis=0)).astype(np.float32), RATE)
        with running_server(serve_command(*OPTIONS), Path(folder) / "log") as server:
            command = [find_node(), str(SCRIPT), server.url, str(given.presses), *FORMATS]
            done = subprocess.run(
                command, env=browser_env(clip), stdout=subprocess.PIPE, text=True, check=True
            )
    for line in done.stdout.splitlines():
        print(json.dumps(summary(json.loads(line))), flush=True)


def summary(found: Values) -> Values:
    """Return the percentiles of the times of a format."""
    low, middle, high = np.percentile(found["times"], (10, 50, 90))
    return {
        "format": found["format"],
        "presses": len(found["times"]),
        "p10_ms": round(float(low)),
        "p50_ms": round(float(middle)),
        "p90_ms": round(float(high)),
    }


if __name__ == "__main__":
    main()

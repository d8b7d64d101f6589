"""Record a call of the page as an animated picture for the documents.

Usage: python -m lab.tools.record_call [FILE]

A recorded voice asks the built-in model two questions in Chromium. FILE is an animated WebP. On a busy
machine answers are late: as root, `chrt -r 1 python -m lab.tools.record_call` comes before other programs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import av

from antiphon.audio.wav import write_wav
from antiphon_client.clip import load_clip
from tests.support.caller import SAMPLE_RATE
from tests.support.launch import ANTIPHON, free_port, running_server
from tests.support.node import browser_env, find_node

SCRIPT = Path(__file__).with_suffix(".js")
FILE = "docs/images/web-call.webp"
PERIOD_MS = 125
SIZE = 900, 860
OPTIONS = {"quality": "75", "compression_level": "6"}


def join(pictures: list[Path], target: Path) -> None:
    """Write pictures, whose names are times in units of ``PERIOD_MS``, as an animated WebP that repeats."""
    with av.open(str(target), "w", format="webp", options={"loop": "0"}) as video:
        stream = video.add_stream("libwebp_anim", rate=Fraction(1000, PERIOD_MS), options=OPTIONS)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "bgra"
        for path in pictures:
            with av.open(str(path)) as picture:
                frame = next(picture.decode(video=0)).reformat(format="bgra")
            frame.pts, frame.time_base = int(path.stem), Fraction(PERIOD_MS, 1000)
            video.mux(stream.encode(frame))
        video.mux(stream.encode())


def main(argv: list[str]) -> None:
    """Start a server and a browser, and record a call."""
    target = Path(argv[0] if argv else FILE)
    with tempfile.TemporaryDirectory() as scratch:
        clip, port = Path(scratch) / "clip.wav", free_port()
        write_wav(clip, load_clip(None), SAMPLE_RATE)
        command = [*ANTIPHON, "serve", "--port", str(port), "--slots", "1"]
        with running_server(command, port, Path(scratch) / "server.log") as server:
            script = [find_node(), str(SCRIPT), server.url, scratch, *map(str, (PERIOD_MS, *SIZE))]
            subprocess.run(script, env=browser_env(clip), check=True)
        pictures = sorted(Path(scratch).glob("*.png"))
        join(pictures, target)
    print(f"{target}: {len(pictures)} pictures, {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])

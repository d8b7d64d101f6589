"""Compares a call whose connection is cut at random moments with an uncut one: text, sound, outage and gap.

    python -m lab.bench.resume_cuts MODEL [CUTS]

The servers are fresh, with ``--fixed-batch``, and get a repeated question in float samples, as fast as it is
answered. The text has to equal that of the uncut call byte for byte, and every frame's sound too.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp
import numpy as np

from antiphon_client.clip import fit_clip, load_question
from antiphon_client.measures import Distribution
from tests.serve.harness import FRAME_SAMPLES
from tests.serve.resuming import QUERY, ResumingCaller
from tests.support.launch import ANTIPHON, free_port, running_server

FRAMES_A_CUT = 10
FRAMES_AFTER = 100
"""Frames after the last cut, which must occur during the call, although frames are answered at full speed."""
SEEDS = "&text_seed=5&audio_seed=7"


async def spoken(model: str, frames: int, cuts_at: list[int]) -> ResumingCaller:
    """Run one call of ``frames`` frames, cut after each number of answers in ``cuts_at``."""
    port = free_port()
    command = [*ANTIPHON, "serve", "--model", model, "--port", str(port), "--fixed-batch", "--slots", "2"]
    log = Path(tempfile.gettempdir()) / f"resume-cuts-{port}.log"
    with running_server(command, port, log):
        async with aiohttp.ClientSession() as http:
            url = f"ws://127.0.0.1:{port}/api/chat?{QUERY}{SEEDS}"
            pcm = fit_clip(load_question(), frames * FRAME_SAMPLES / 24_000)
            caller = ResumingCaller(http, url, pcm, patience_s=3600.0)
            running = asyncio.ensure_future(caller.run())
            for at in cuts_at:
                await caller.until_answered(at)
                await asyncio.sleep(0.08 * np.random.default_rng(at).random())
                caller.cut()
            await running
    return caller


def shown(name: str, found: Distribution | None) -> str:
    """Return one line about a distribution."""
    assert found is not None
    return f"{name:<16} p50 {found.p50:.0f} ms, p99 {found.p99:.0f} ms, most {found.max:.0f} ms"


def main() -> None:
    """Run the command line, and print the results."""
    model, cuts = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 200
    frames = FRAMES_A_CUT * (cuts + 1) + FRAMES_AFTER
    chance = np.random.default_rng(7)
    cuts_at = [FRAMES_A_CUT * (k + 1) + int(chance.integers(0, FRAMES_A_CUT - 4)) for k in range(cuts)]
    whole = asyncio.run(spoken(model, frames, []))
    cut = asyncio.run(spoken(model, frames, cuts_at))
    text, again = "".join(whole.heard.text), "".join(cut.heard.text)
    sounds = [frame for frame, pieces in whole.heard.audio.items() if len(pieces) == 1]
    same = sum(
        len(cut.heard.audio.get(frame, [])) == 1
        and np.array_equal(cut.heard.audio[frame][0], whole.heard.audio[frame][0])
        for frame in sounds
    )
    print(f"{model}: {cuts} cuts of a call of {frames} frames, {cut.thread.resumptions} resumed")
    print(f"text             {len(text)} bytes, {'the same' if text == again else 'DIFFERENT'}")
    print(f"sound            {same} of {len(sounds)} frames the same, {cut.thread.missed_frames} missed")
    print(shown("cut to resumed", Distribution.of(cut.outages_ms)))
    print(shown("audio gap", Distribution.of(cut.gaps_ms)))


if __name__ == "__main__":
    main()

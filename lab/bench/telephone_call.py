"""Runs a call to a server over the line of :mod:`lab.bench.telephone_line`, in real time.

    python -m lab.bench.telephone_call                 ten minutes
    python -m lab.bench.telephone_call --minutes 0.5

The server runs in this process, with a model that returns its input after 40 ms. The call uses a WebSocket to
``/twilio``, like Twilio's service: packets of 20 ms with jitter, bursts, a gap and a fast clock, determined
by a seed. The telephone returns each mark after it has played the audio before it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import aiohttp
import numpy as np

from antiphon.audio import g711
from antiphon.audio.g711 import Law
from antiphon.backends.base import Result, Work
from antiphon.backends.host import HostBackend
from antiphon.backends.null import NullRows
from lab.bench.telephone_line import (
    FRAME_S,
    LOUD,
    MODEL_S,
    PLAIN_S,
    SPEAKS_S,
    TURN_S,
    Telephone,
    delay_lines,
    packets,
    read_options,
)
from tests.serve.harness import serving
from tests.support.null_models import CODEC, null_checkpoint

FORMAT: Final = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
START: Final = {
    "event": "start",
    "streamSid": "MZ1",
    "start": {"streamSid": "MZ1", "callSid": "CA1", "mediaFormat": FORMAT, "customParameters": {}},
}
REST_S: Final = 2.0
"""Seconds after the last packet for the last answer."""

COUNTER: Final = re.compile(r"^antiphon_(lost|dropped)_frames_total\{(.*)\} (\S+)$", re.MULTILINE)


class EchoRows(NullRows):
    """A backend whose rows reply with their input audio."""

    def run(self, work: Work) -> Result:
        """Run one tick; the audio of each reply is the row's input."""
        pcm = work.pcm.copy()
        return super().run(work)._replace(pcm=pcm)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The result of a call: the playback of the telephone, and the server's counters of lost and dropped
    frames."""

    heard: Telephone
    loud_frames: int
    turns: int
    counters: str

    def lines(self, plain: CallOutcome) -> Iterator[str]:
        """Yield the result as text; ``plain`` is the result of a line without faults."""
        said = round(self.turns * SPEAKS_S / FRAME_S)
        yield f"{said} frames of the caller's speech, {self.loud_frames} heard; the server: {self.counters}"
        yield f"{self.turns} turns of the caller, {len(self.heard.turns_s)} answered"
        yield f"{self.heard.underruns} under-runs"
        yield from delay_lines(self.heard.delays_s, plain.heard.delays_s)


async def call(url: str, seconds: float, fast: float, seed: int, *, is_plain: bool = False) -> CallOutcome:
    """Make one call to the server at ``url``."""
    loop, telephone, loud = asyncio.get_running_loop(), Telephone(), 0
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{url}/twilio") as ws:
            await ws.send_json({"event": "connected", "protocol": "Call", "version": "1.0.0"})
            await ws.send_json(START)
            start_s = loop.time()

            async def speak() -> None:
                for comes_s, packet in packets(seconds, fast, seed, is_plain=is_plain):
                    await asyncio.sleep(start_s + comes_s - loop.time())
                    await ws.send_json({**packet, "streamSid": "MZ1"})
                await asyncio.sleep(REST_S)
                await ws.close()

            async def played(name: str, at_s: float) -> None:
                await asyncio.sleep(at_s - loop.time())
                if not ws.closed:
                    await ws.send_json({"event": "mark", "streamSid": "MZ1", "mark": {"name": name}})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(speak())
                async for message in ws:
                    event, now_s = json.loads(message.data), loop.time() - start_s
                    match event["event"]:
                        case "media":
                            pcm = g711.decode(base64.b64decode(event["media"]["payload"]), Law.MU)
                            telephone.take(pcm, now_s)
                            loud += bool(np.abs(pcm).max() > LOUD)
                        case "mark":
                            tasks.create_task(played(event["mark"]["name"], start_s + telephone.ends_s))
                        case "clear":
                            telephone.ends_s = now_s
        async with http.get(f"{url}/metrics") as response:
            counters = COUNTER.findall(await response.text())
    shown = ", ".join(f"{name} {labels} {float(value):g}" for name, labels, value in counters)
    return CallOutcome(telephone, loud, round(seconds / TURN_S), shown)


async def measure(minutes: float, fast: float, seed: int) -> list[str]:
    """Measure a line without faults, then the line with faults, each with a separate server; returns the
    results as text."""
    outcomes = []
    for seconds, rate, is_plain in ((PLAIN_S, 0.0, True), (60 * minutes, fast, False)):
        backend = HostBackend(CODEC, EchoRows(CODEC, step_ms=1000 * MODEL_S), slots=1)
        async with serving(model=(null_checkpoint(CODEC), backend)) as server:
            outcomes.append(await call(server.url(""), seconds, rate, seed, is_plain=is_plain))
    plain, line = outcomes
    return [*line.lines(plain)]


if __name__ == "__main__":
    options = read_options("Call a server over a telephone line.", sys.argv[1:])
    print("\n".join(asyncio.run(measure(options.minutes, options.fast, options.seed))))

"""OpenAI's REST speech beside Kyutai's routes by POST, with tiny-tts and tiny-stt.

    python -m lab.bench.rest_speech [ROUNDS [RECORDINGS]]

One server, one request at a time, in another order every round: the time to the first byte of a text's speech
in each format, and, in the first RECORDINGS rounds, how fast a recording of half a minute is transcribed:
the smallest, the largest and the quartiles.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.wav import encode_wav
from lab.bench.harness import Values
from tests.support.launch import ANTIPHON, free_port, running_server

TEXT = "what is your name"
RECORDING_S = 30
RATE = 24_000
WARM_UP = 1
FORMATS = ("wav", "pcm", "opus", "mp3", "aac", "flac")


def recording() -> bytes:
    """Half a minute of questions as a WAV."""
    clips = Path(str(resources.files("antiphon_client") / "clips"))
    asked = [read_audio(path) for path in sorted(clips.glob("question-*.ogg"))]
    speech = np.resize(np.concatenate(asked), RECORDING_S * RATE)
    return encode_wav(speech, RATE)


async def first_byte_ms(http: aiohttp.ClientSession, url: str, body: Values) -> float:
    """From the request to the first byte of the answer's body."""
    start_s = time.perf_counter()
    async with http.post(url, json=body) as response:
        await response.content.readany()
        took_s = time.perf_counter() - start_s
        await response.read()
    assert response.status == 200
    return took_s * 1000


async def speed(http: aiohttp.ClientSession, url: str, body: Any) -> float:
    """Seconds of the recording a second."""
    start_s = time.perf_counter()
    async with http.post(url, data=body) as response:
        await response.read()
    assert response.status == 200
    return RECORDING_S / (time.perf_counter() - start_s)


def form(wav: bytes, name: str) -> aiohttp.FormData:
    """A recording as the clients of OpenAI send it."""
    data = aiohttp.FormData({"response_format": name})
    data.add_field("file", wav, filename="a.wav")
    return data


def questions(wav: bytes) -> dict[str, Callable[[aiohttp.ClientSession, str], Awaitable[float]]]:
    """What is measured, by name; a function for each."""

    def spoken(path: str, body: Values) -> Callable[[aiohttp.ClientSession, str], Awaitable[float]]:
        return lambda http, url: first_byte_ms(http, url + path, body)

    def heard(path: str, body: Callable[[], Any]) -> Callable[[aiohttp.ClientSession, str], Awaitable[float]]:
        return lambda http, url: speed(http, url + path, body())

    found = {"first byte ms: /api/tts_streaming": spoken("/api/tts_streaming", {"text": TEXT})}
    for name in FORMATS:
        order = {"input": TEXT, "response_format": name}
        found[f"first byte ms: /v1/audio/speech {name}"] = spoken("/v1/audio/speech", order)
    found["times real time: /api/asr-streaming"] = heard("/api/asr-streaming", lambda: wav)
    found["times real time: /v1/audio/transcriptions"] = heard(
        "/v1/audio/transcriptions", lambda: form(wav, "verbose_json")
    )
    return found


async def measure(url: str, rounds: int, recordings: int) -> Values:
    """Every route once a round."""
    asked, order = questions(recording()), random.Random(1)
    took: dict[str, list[float]] = {what: [] for what in asked}
    async with aiohttp.ClientSession() as http:
        for turn in range(WARM_UP + rounds):
            for what in order.sample(list(asked), len(asked)):
                if what.startswith("times") and turn >= WARM_UP + recordings:
                    continue
                value = await asked[what](http, url)
                if turn >= WARM_UP:
                    took[what].append(value)
    return {what: _shown(values) for what, values in took.items() if values}


def _shown(values: list[float]) -> Values:
    low, middle, high = map(_round, statistics.quantiles(values))
    return {
        "min": _round(min(values)),
        "low": low,
        "median": middle,
        "high": high,
        "max": _round(max(values)),
    }


def _round(value: float) -> float:
    return round(value, 1)


def main(rounds: int, recordings: int) -> Values:
    """The figures of one server."""
    port, log = free_port(), Path("out/rest-speech.log")
    log.parent.mkdir(exist_ok=True)
    models = ("--model", "tiny-stt", "--model", "tiny-tts", "--slots", "2")
    with running_server([*ANTIPHON, "serve", "--port", str(port), *models], port, log) as server:
        return asyncio.run(measure(server.url, rounds, recordings))


if __name__ == "__main__":
    counts = [int(argument) for argument in sys.argv[1:]]
    sys.stdout.write(json.dumps(main(*counts, *(40, 6)[len(counts) :]), indent=1) + "\n")

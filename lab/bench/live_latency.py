"""What OpenAI Live adds to the latency of a frame, beside ``/api/chat``: null backend, PCM both ways.

    python -m lab.bench.live_latency [SESSIONS [SECONDS]]

Two servers' worth of calls by turns, fresh processes, at random phases and in real time. A frame carries its
number in a sample behind the null backend's stamp; its latency runs from its sending to the answer's arrival.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from antiphon.protocol import moshi
from lab.bench.harness import Values
from tests.support.launch import ANTIPHON, free_port, running_server

FRAME = 1920
FRAME_S = 0.08
PLACE = 1000
"""The sample that holds a frame's number, behind the stamp."""
RUNS = 5


def numbered(number: int) -> bytes:
    """A frame of silence that holds its number."""
    pcm = np.zeros(FRAME, "<i2")
    pcm[PLACE] = number
    return pcm.tobytes()


def number_of(pcm: bytes) -> int:
    """The number in an answer; 0 in what answers no frame of ours."""
    return int(np.frombuffer(pcm, "<i2")[PLACE])


def read_chat(message: aiohttp.WSMessage) -> bytes | None:
    """The samples of a message of ``/api/chat``."""
    if message.type is not aiohttp.WSMsgType.BINARY:
        return None
    decoded = moshi.decode(message.data)
    return decoded.data if isinstance(decoded, moshi.StampedAudio) else None


def read_live(message: aiohttp.WSMessage) -> bytes | None:
    """The samples of a message of ``/v1/live/sessions``."""
    if message.type is not aiohttp.WSMsgType.TEXT or '"session.output_audio.delta"' not in message.data[:60]:
        return None
    return base64.b64decode(json.loads(message.data)["delta"])


async def call(
    ws: aiohttp.ClientWebSocketResponse,
    frames: int,
    write: Callable[[bytes], Any],
    read: Callable[[aiohttp.WSMessage], bytes | None],
) -> list[float]:
    """The latencies of one call, in ms."""
    sent: dict[int, float] = {}
    took: list[float] = []

    async def hear() -> None:
        async for message in ws:
            pcm = read(message)
            if pcm is not None and (number := number_of(pcm)):
                took.append((time.perf_counter() - sent.pop(number)) * 1000)
                if number == frames:
                    return

    hearing = asyncio.create_task(hear())
    start_s = time.perf_counter() + random.random() * FRAME_S
    for number in range(1, frames + 1):
        await asyncio.sleep(max(0.0, start_s + number * FRAME_S - time.perf_counter()))
        sent[number] = time.perf_counter()
        await write(numbered(number))
    await asyncio.wait_for(hearing, 10)
    return took[12:]  # the first second is the session's beginning


async def chat_call(session: aiohttp.ClientSession, url: str, frames: int) -> list[float]:
    """One call over ``/api/chat`` in 16-bit samples."""
    async with session.ws_connect(f"{url}/api/chat?ext=1&format=pcm_s16le", max_msg_size=0) as ws:
        while b'"ready"' not in (await ws.receive()).data:
            pass
        return await call(ws, frames, lambda pcm: ws.send_bytes(moshi.encode(moshi.Audio(pcm))), read_chat)


async def live_call(session: aiohttp.ClientSession, url: str, frames: int) -> list[float]:
    """One call over OpenAI Live in 16-bit samples."""
    async with session.ws_connect(f"{url}/v1/live/sessions", max_msg_size=0) as ws:
        await ws.send_json({"type": "session.start", "session": {"model": "echo"}})
        await ws.receive()

        def write(pcm: bytes) -> Any:
            audio = base64.b64encode(pcm).decode()
            return ws.send_str('{"type":"session.input_audio.append","audio":"' + audio + '"}')

        return await call(ws, frames, write, read_live)


async def load(url: str, sessions: int, frames: int, kind: Callable[..., Any]) -> Values:
    """All calls at once."""
    async with aiohttp.ClientSession() as session:
        parts = await asyncio.gather(*(kind(session, url, frames) for _ in range(sessions)))
    took = np.concatenate(parts)
    return {"frames": int(took.size), "p50_ms": _ms(took, 50), "p99_ms": _ms(took, 99)}


def _ms(took: Any, percentile: float) -> float:
    return round(float(np.percentile(took, percentile)), 2)


def measure(sessions: int, seconds: float) -> Values:
    """By turns: chat, live, chat, live, ..."""
    frames = round(seconds / FRAME_S)
    runs: dict[str, list[Values]] = {"chat": [], "live": []}
    for _ in range(RUNS):
        for name, kind in (("chat", chat_call), ("live", live_call)):
            port = free_port()
            command = [*ANTIPHON, "serve", "--model", "echo", "--backend", "null", "--slots", str(sessions)]
            log = Path("out/live-latency.log")
            log.parent.mkdir(exist_ok=True)
            with running_server([*command, "--port", str(port)], port, log):
                runs[name].append(asyncio.run(load(f"ws://127.0.0.1:{port}", sessions, frames, kind)))
    pairs = zip(runs["chat"], runs["live"], strict=True)
    added = [round(live["p99_ms"] - chat["p99_ms"], 2) for chat, live in pairs]
    return {"sessions": sessions, "runs": runs, "added_p99_ms": added, "median_ms": statistics.median(added)}


if __name__ == "__main__":
    arguments = [float(argument) for argument in sys.argv[1:]]
    count, length_s = (arguments + [16.0, 20.0][len(arguments) :])[:2]
    sys.stdout.write(json.dumps(measure(round(count), length_s), indent=1) + "\n")

"""Callers of a benchmark that send PCM, and the latency of their frames while other callers come and go.

A talker sends a frame of 80 ms every 80 ms, and measures the time until its answer. The others are separate
processes, so that creating them does not delay the talkers.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import aiohttp
import numpy as np

from antiphon.protocol import moshi
from lab.bench.harness import Values, probe

FRAME_S: Final = 0.08
SILENCE: Final = moshi.encode(moshi.Audio(bytes(1920 * 2)))
TALK: Final = "/api/chat?ext=1&format=pcm_s16le"
PLAIN: Final = "/api/chat"

SETTLE_S: Final = 2.0
"""Seconds that talkers talk before the load begins."""

LOOK_S: Final = 0.1
"""Seconds between two attempts of a new caller."""


class Talkers:
    """Callers at random phases; ``frames`` has (send time, latency in seconds) of each answer."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self.frames: list[tuple[float, float]] = []
        self.sent = 0
        self.cut: list[int | None] = []  # close code of each connection that the server has closed
        self.is_over = False

    async def run(self) -> None:
        """Send frames and receive the answers until :attr:`is_over`."""
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(self._talk(http, random.uniform(0, FRAME_S)) for _ in range(self._count)))

    async def _talk(self, http: aiohttp.ClientSession, phase_s: float) -> None:
        async with http.ws_connect(self._url + TALK, max_msg_size=0) as ws:
            sent_s: list[float] = []
            hearing = asyncio.create_task(self._hear(ws, sent_s))
            due_s = time.monotonic() + SETTLE_S / 2 + phase_s
            while not self.is_over and not ws.closed:
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                sent_s.append(time.monotonic())
                self.sent += 1
                with suppress(ConnectionError):
                    await ws.send_bytes(SILENCE)
                due_s += FRAME_S
            if ws.closed:
                self.cut.append(ws.close_code)
            await asyncio.sleep(4 * FRAME_S)
            hearing.cancel()

    async def _hear(self, ws: aiohttp.ClientWebSocketResponse, sent_s: Sequence[float]) -> None:
        async for message in ws:
            if isinstance(message.data, bytes):
                answer = moshi.decode(message.data)
                if isinstance(answer, moshi.StampedAudio) and answer.frame < len(sent_s):
                    self.frames.append((sent_s[answer.frame], time.monotonic() - sent_s[answer.frame]))

    def between(self, start_s: float, end_s: float) -> Values:
        """Return the p99 latency in ms of the frames sent between ``start_s`` and ``end_s``, and the number
        of late ones."""
        latencies = [latency_s for at_s, latency_s in self.frames if start_s <= at_s < end_s]
        return {
            "frames": len(latencies),
            "p99_ms": round(1000 * float(np.quantile(latencies, 0.99)), 1) if latencies else None,
            "late": sum(latency_s > FRAME_S for latency_s in latencies),
        }


def burst(url: str, talkers: int, connections: int) -> Values:
    """Measure the talkers while ``connections`` further callers connect within one second."""
    return asyncio.run(_burst(url, talkers, connections))


async def _burst(url: str, talkers: int, connections: int) -> Values:
    talking = Talkers(url, talkers)
    task = asyncio.create_task(talking.run())
    await asyncio.sleep(2 * SETTLE_S)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        await asyncio.to_thread(pool.apply, time.monotonic)  # it has started
        begun_s = time.monotonic()
        opened = await asyncio.to_thread(pool.apply, _connect_all, (url, connections))
        ended_s = time.monotonic()
    await asyncio.sleep(1.0)
    talking.is_over = True
    await task
    return {
        "talkers": talkers,
        "connections": connections,
        **opened,
        "before": talking.between(0.0, begun_s),
        "during": talking.between(begun_s, ended_s + 1.0),
        "unanswered": talking.sent - len(talking.frames),
    }


def _connect_all(url: str, connections: int) -> Values:
    return asyncio.run(_connect(url, connections))


async def _connect(url: str, connections: int) -> Values:
    """Open all of them within a second, at random moments, hold them for a while, and close."""
    longest_s = 0.0
    opened = refused = 0

    async def one(http: aiohttp.ClientSession, delay_s: float) -> None:
        nonlocal longest_s, opened, refused
        await asyncio.sleep(delay_s)
        start_s = time.monotonic()
        try:
            async with http.ws_connect(url + PLAIN) as ws:
                await ws.receive()
                longest_s = max(longest_s, time.monotonic() - start_s)
                opened += 1
                await asyncio.sleep(2.0)
        except aiohttp.ClientError:
            refused += 1

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        await asyncio.gather(*(one(http, number / connections) for number in range(connections)))
    return {"opened": opened, "refused": refused, "longest_ms": round(1000 * longest_s, 1)}


def overload(url: str, talkers: int, surge: int, *, surge_s: float, after_s: float) -> Values:
    """Measure the talkers while ``surge`` callers of Opus are connected for ``surge_s`` seconds, and the time
    until latency is normal after the callers have left."""
    return asyncio.run(_overload(url, talkers, surge, surge_s, after_s))


async def _overload(url: str, talkers: int, surge: int, surge_s: float, after_s: float) -> Values:
    talking = Talkers(url, talkers)
    task = asyncio.create_task(talking.run())
    await asyncio.sleep(2 * SETTLE_S)
    begun_s = time.monotonic()
    report = await asyncio.to_thread(
        probe, url, "--sessions", str(surge), "--seconds", f"{surge_s:g}", "--format", "opus"
    )
    left_s = time.monotonic()
    refused_until_s = await _until_admitted(url, left_s, after_s)
    await asyncio.sleep(max(0.0, left_s + after_s - time.monotonic()))
    talking.is_over = True
    await task
    normal = talking.between(0.0, begun_s)
    return {
        "talkers": talkers,
        "surge": surge,
        "rejected": report["report"]["counts"].get("rejected"),
        "cut": talking.cut,
        "before": normal,
        "during": talking.between(begun_s, left_s),
        "after": [talking.between(left_s + at_s, left_s + at_s + 0.5) for at_s in halves(after_s)],
        "normal_after_s": normal_after_s(talking, left_s, after_s, normal["p99_ms"]),
        "refused_until_s": round(refused_until_s, 2),
    }


def normal_after_s(talkers: Talkers, left_s: float, after_s: float, before_ms: float | None) -> float | None:
    """Return the seconds from ``left_s`` to the end of the last half second with a p99 above both 20 ms and
    twice ``before_ms``."""
    limit_ms = max(20.0, 2 * (before_ms or 0.0))
    last_s = 0.0
    for at_s in halves(after_s):
        found = talkers.between(left_s + at_s, left_s + at_s + 0.5)
        if not found["frames"] or (found["p99_ms"] or 0.0) > limit_ms:
            last_s = at_s + 0.5
    return last_s


def halves(seconds: float) -> list[float]:
    """Return the start of each half second of ``seconds``."""
    return [number / 2 for number in range(int(2 * seconds))]


async def _until_admitted(url: str, left_s: float, limit_s: float) -> float:
    """Seconds after ``left_s`` of the last refusal before a new caller is admitted."""
    refused_s = left_s
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < left_s + limit_s:
            try:
                async with http.ws_connect(url + PLAIN) as ws:
                    await ws.receive()
                    return refused_s - left_s
            except aiohttp.ClientError:
                refused_s = time.monotonic()
            await asyncio.sleep(LOOK_S)
    return limit_s

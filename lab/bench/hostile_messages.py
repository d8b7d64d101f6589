"""Sends hostile messages to a server next to talkers, and compares the talkers' losses with a quiet run.

    python -m lab.bench.hostile_messages [--messages N] [--talkers N] [--raiders N]

The messages are the inputs of the fuzzer's corpora and mutations of them: events over sessions of OpenAI
Live, which stay open after an error, and messages over `/api/chat`, where each connection ends with the
first. Their senders have the lowest priority, since they run on the server's machine. Both runs have the same
server and repeated calls of 20 s in real time; the quiet run is first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from lab.bench.fault_scene import Service
from lab.bench.fault_talker import FRAME_S, QUERY, Fate, Talker
from lab.bench.harness import tell
from lab.tools.fuzz.target import read_corpus

CALL_S: Final = 20.0
QUIET_S: Final = 60.0
BURST: Final = 20
"""Messages between two reads of the answers."""

CHAT_SHARE: Final = 0.1
"""Share of the senders that call `/api/chat`."""

TELL_S: Final = 15.0
START: Final = json.dumps({"type": "session.start", "session": {"model": "null-echo"}})
OPTIONS: Final = (
    *("--front-ends", "2", "--slots", "64", "--tune", "max_messages_per_s=100000"),
    *("--tune", "late_refuse_fraction=1", "--tune", "host_lag_ms=10000", "--max-sessions-per-address", "64"),
)


@dataclass
class Raid:
    """Connections that send hostile messages until ``messages`` have been sent."""

    http: aiohttp.ClientSession
    url: str
    messages: int
    pause_s: float = 0.0  # of each connection, between bursts
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Read the corpora."""
        self._events = [*read_corpus("live"), *read_corpus("realtime"), *read_corpus("rest_json")]
        self._binary = [
            *read_corpus("chat"),
            *read_corpus("resume"),
            *read_corpus("tts"),
            *read_corpus("ogg"),
        ]

    async def run(self, raiders: int) -> None:
        """Send all messages over ``raiders`` connections at a time."""
        chats = max(1, round(CHAT_SHARE * raiders))
        async with asyncio.TaskGroup() as group:
            for number in range(raiders):
                raid = self._chat if number < chats else self._live
                group.create_task(self._again(raid, random.Random(number)))

    async def _again(self, raid: Callable[[random.Random], object], chance: random.Random) -> None:
        while self.sent < self.messages:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await raid(chance)  # type: ignore[misc]

    async def _live(self, chance: random.Random) -> None:
        async with self.http.ws_connect(f"{self.url}/v1/live/sessions", max_msg_size=0) as ws:
            await ws.send_str(START)
            listening = asyncio.ensure_future(self._listen(ws))
            while self.sent < self.messages and not listening.done():
                await asyncio.sleep(self.pause_s)  # let answers arrive
                for _ in range(BURST):
                    if ws.closed or listening.done():
                        break
                    self.sent += 1
                    data = mutated(chance, self._events)
                    is_text = chance.random() > 0.05
                    await (ws.send_str(data.decode("utf-8", "replace")) if is_text else ws.send_bytes(data))
            await asyncio.wait({listening}, timeout=1.0)
            listening.cancel()

    async def _listen(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        async for message in ws:
            if message.type is aiohttp.WSMsgType.TEXT:
                event = json.loads(message.data)
                self.answers[event.get("error", {}).get("code") or event["type"]] += 1
        self.answers[f"closed {ws.close_code}"] += 1

    async def _chat(self, chance: random.Random) -> None:
        async with asyncio.timeout(10.0), self.http.ws_connect(f"{self.url}/api/chat?{QUERY}") as ws:
            await ws.receive()
            self.sent += 1
            await ws.send_bytes(mutated(chance, self._binary))
            async for _ in ws:
                pass
            self.answers[f"closed {ws.close_code}"] += 1
            await asyncio.sleep(self.pause_s)


def mutated(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Return an input unchanged, with some bytes changed, cut short, or joined with the end of another."""
    data = bytearray(chance.choice(corpus))
    kind = chance.randrange(4)
    if kind == 1 and data:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 2:
        other = chance.choice(corpus)
        data = data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]
    elif kind == 3:
        del data[chance.randint(0, len(data)) :]
    return bytes(data)


async def talk(
    http: aiohttp.ClientSession, url: str, talkers: int, is_over: Callable[[], bool]
) -> list[Fate]:
    """Repeat the calls of ``talkers`` talkers until ``is_over``; returns the results of the calls."""
    fates: list[Fate] = []

    async def one(seed: int) -> None:
        while not is_over():
            fates.append(await Talker(http, url, seed, round(CALL_S / FRAME_S)).run())

    async with asyncio.TaskGroup() as group:
        for seed in range(talkers):
            group.create_task(one(seed))
    return fates


def shown(name: str, fates: Sequence[Fate]) -> str:
    """Return the counts of the calls as a line of text."""
    due, lost, late = (sum(getattr(fate, key) for fate in fates) for key in ("due", "lost", "late"))
    foreign, ended = sum(fate.foreign for fate in fates), sum(bool(fate.ended) for fate in fates)
    longest_ms = max(fate.silence_ms for fate in fates)
    return (
        f"{name:<8} {len(fates)} calls, {due:,} frames: {lost} lost, {late} late ({late / due:.3%}), "
        f"{foreign} foreign, {ended} calls ended, longest silence {longest_ms:.0f} ms"
    )


async def measure(messages: int, talkers: int, raiders: int) -> int:
    """Run the quiet run and the run with hostile messages; returns 1 if a frame was lost or a call ended."""
    service = Service(*OPTIONS, environment={})
    connector = aiohttp.TCPConnector(limit=0)
    async with service.running(), aiohttp.ClientSession(connector=connector) as http:
        until_s = time.monotonic() + QUIET_S
        quiet = await talk(http, service.url, talkers, lambda: time.monotonic() > until_s)
        tell(shown("quiet", quiet))
        begun_s = time.monotonic()
        words = ("--raid", service.url, "--messages", str(messages), "--raiders", str(raiders))
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "19", sys.executable, "-m", "lab.bench.hostile_messages", *words),
            stdout=asyncio.subprocess.PIPE,
        )
        raiding = asyncio.ensure_future(process.communicate())
        hostile = await talk(http, service.url, talkers, raiding.done)
        output, _ = await raiding
        elapsed_s = time.monotonic() - begun_s
        tracebacks = sum("Traceback" in line for line in service.log)
    print(f"next to {talkers} talkers, for {elapsed_s:.0f} s:\n{output.decode().strip()}")
    print(shown("quiet", quiet))
    print(shown("hostile", hostile))
    print(f"{tracebacks} tracebacks, {len(service.log)} lines of log, server started {service.starts} times")
    return int(any(fate.lost or fate.ended for fate in hostile) or bool(tracebacks) or service.starts > 1)


async def raid_alone(url: str, messages: int, raiders: int) -> None:
    """Run only the raid: in a separate process, so that its CPU time is not counted as the talkers'."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        raid = Raid(http, url, messages)
        raiding = asyncio.ensure_future(raid.run(raiders))
        while not raiding.done():
            await asyncio.wait({raiding}, timeout=TELL_S)
            tell(f"{raid.sent:,} of {messages:,} messages, {raid.answers.total():,} answers")
        await raiding
    found = ", ".join(f"{number:,} {what}" for what, number in raid.answers.most_common(12))
    print(f"{raid.sent:,} hostile messages, answers: {found}")


def main(argv: Sequence[str]) -> int:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="hostile messages [%(default)s]")
    parser.add_argument("--talkers", type=int, default=16, help="real-time callers [%(default)s]")
    parser.add_argument(
        "--raiders", type=int, default=10, help="connections that send hostile messages [%(default)s]"
    )
    parser.add_argument("--raid", metavar="URL", help="send them to this server, and measure nothing")
    args = parser.parse_args(argv)
    if args.raid is not None:
        asyncio.run(raid_alone(args.raid, args.messages, args.raiders))
        return 0
    return asyncio.run(measure(args.messages, args.talkers, args.raiders))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

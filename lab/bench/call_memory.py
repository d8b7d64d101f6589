"""Measures the memory that the server keeps after thousands of short calls, by its size after each batch.

    python -m lab.bench.call_memory [KIND...] [--calls N] [--batches N] [--front-ends N]

A call is one frame and its answer, eight at a time, on a server of the null backend's codec. Each kind has a
separate server; the first quarter of the batches fills the memory that the server keeps for former calls
(hashes of used tokens, free memory of the allocator). The growth is the least-squares slope over the other
batches, with its 95 % confidence interval, of the memory that a process shares with no other, for each role.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import aiohttp
import psutil

from antiphon.protocol import events, moshi
from lab.bench.fault_scene import Service
from lab.bench.fault_talker import QUERY
from lab.bench.harness import tell
from lab.bench.hostile_messages import START, mutated
from lab.bench.soak import line_through
from lab.tools.fuzz.target import read_corpus
from tests.serve.harness import Client, speech

AT_ONCE: Final = 8
AWAY_S: Final = 0.6
"""Seconds after a cut: the row is free again when the window is over, so that the next call gets one."""

SETTLE_S: Final = 1.0
"""Seconds after a batch for freeing sockets and rows."""

OPTIONS: Final = ("--slots", "16", "--max-sessions-per-address", "16", "--tune", "resume_window_s=0.5")
FRAME: Final = speech(1)
KIB: Final = 1024
HEAD: Final = (
    "| calls | processes | KiB after a batch | after a quarter | at the end | bytes a call since |\n"
    "|---|---|---|---|---|---|"
)

Call = Callable[[aiohttp.ClientSession, str, random.Random], Awaitable[None]]


async def _talk(http: aiohttp.ClientSession, url: str, query: str, *, is_cut: bool) -> None:
    async with http.ws_connect(f"{url}/api/chat?{query}", max_msg_size=0) as ws:
        client = Client(ws)
        await client.event("ready")
        await client.speak(FRAME)
        await client.reply()
        if is_cut:
            client.cut()
        else:
            await client.send(events.bye())
            await client.closed()


async def plain(http: aiohttp.ClientSession, url: str, _: random.Random) -> None:
    """Make a call, and close it normally."""
    await _talk(http, url, QUERY, is_cut=False)


async def resumable(http: aiohttp.ClientSession, url: str, _: random.Random) -> None:
    """Make a call that can be resumed."""
    await _talk(http, url, f"{QUERY}&resume=1", is_cut=False)


async def cut(http: aiohttp.ClientSession, url: str, _: random.Random) -> None:
    """Make a call whose connection breaks, and that is not resumed in time."""
    await _talk(http, url, f"{QUERY}&resume=1", is_cut=True)
    await asyncio.sleep(AWAY_S)


async def hostile(http: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
    """Make a session of OpenAI Live with twenty randomly mutated events."""
    corpus = [*read_corpus("live"), *read_corpus("realtime")]
    async with http.ws_connect(f"{url}/v1/live/sessions", max_msg_size=0) as ws:
        await ws.send_str(START)
        for _ in range(20):
            await ws.send_str(mutated(chance, corpus).decode("utf-8", "replace"))
        await ws.send_str('{"type": "session.close"}')
        async for _ in ws:
            pass


async def garbage(http: aiohttp.ClientSession, url: str, chance: random.Random) -> None:
    """Make a call whose first message is randomly mutated."""
    async with http.ws_connect(f"{url}/api/chat?{QUERY}", max_msg_size=0) as ws:
        await Client(ws).event("ready")
        await ws.send_bytes(mutated(chance, [*read_corpus("chat"), *read_corpus("ogg")]))
        await ws.send_bytes(moshi.encode(events.bye()))
        async for _ in ws:
            pass


async def scrape(http: aiohttp.ClientSession, url: str, _: random.Random) -> None:
    """Read the server's metrics once."""
    async with http.get(f"{url}/metrics") as response:
        await response.read()


KINDS: Final[dict[str, Call]] = {
    "plain": plain,
    "resumable": resumable,
    "cut": cut,
    "hostile": hostile,
    "garbage": garbage,
    "scrape": scrape,
}


async def batch(call: Call, url: str, calls: int, seed: int) -> int:
    """Run ``calls`` calls, a few at a time; returns how many of them the server or the network ended."""
    failed = 0
    left = iter(range(calls))

    async def one_after_another() -> None:
        nonlocal failed
        for number in left:
            try:
                await call(http, url, random.Random(f"{seed}/{number}"))
            except (aiohttp.ClientError, OSError, AssertionError):
                failed += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    await asyncio.sleep(SETTLE_S)
    return failed


def private_bytes(service: Service) -> dict[str, int]:
    """Return the bytes that the processes of each role share with no other process."""
    found: dict[str, int] = {}
    for role in ("supervisor", "engine", "front-end"):
        with contextlib.suppress(psutil.NoSuchProcess):
            infos = [process.memory_info() for process in service.of_role(role)]
            found[role] = sum(info.rss - info.shared for info in infos)
    return found


async def measure(kind: str, calls: int, batches: int, front_ends: int) -> dict[str, list[int]]:
    """Run ``batches`` batches of calls of a kind; returns the bytes of each role after each batch."""
    service = Service(*OPTIONS, "--front-ends", str(front_ends), environment={})
    sizes: dict[str, list[int]] = defaultdict(list)
    async with service.running():
        for number in range(batches):
            failed = await batch(KINDS[kind], service.url, calls, number)
            for role, size in private_bytes(service).items():
                sizes[role].append(size)
            shown = ", ".join(f"{role} {each[-1] / KIB:,.0f}" for role, each in sizes.items())
            tell(f"{kind}: {(number + 1) * calls} calls, {failed} of the last broken off; KiB: {shown}")
    return sizes


def row(kind: str, role: str, sizes: Sequence[int], calls: int) -> str:
    """Return a row of the table; its slope is measured after the first quarter of the batches."""
    kept = sizes[len(sizes) // 4 :]
    slope, half = line_through([calls * place for place in range(len(kept))], kept)
    first, quarter, last = (size / KIB for size in (sizes[0], kept[0], sizes[-1]))
    return f"| {kind} | {role} | {first:,.0f} | {quarter:,.0f} | {last:,.0f} | {slope:+.0f} ± {half:.0f} |"


def main(argv: Sequence[str]) -> int:
    """Measure the named kinds of calls, or all kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"[all]: {', '.join(KINDS)}")
    parser.add_argument("--calls", type=int, default=500, help="of a batch [%(default)s]")
    parser.add_argument("--batches", type=int, default=16, help="[%(default)s]")
    parser.add_argument("--front-ends", type=int, default=2, help="[%(default)s]")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.kinds) - set(KINDS))
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; there are: {', '.join(KINDS)}")
    print(HEAD)
    for kind in args.kinds or KINDS:
        found = asyncio.run(measure(kind, args.calls, args.batches, args.front_ends))
        for role, sizes in found.items():
            print(row(kind, role, sizes, args.calls))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs calls of a voice agent whose text model fails at random, next to plain calls, and counts losses.

    python -m lab.bench.agent_soak [SECONDS] [--agents N] [--plain N] [--out FOLDER]

The agents' callers ask, interrupt, cancel and disconnect at random, some without a close. Half of the text
model's answers have a fault: slow, cut, malformed, full, hanging, endless, or a tool call. Plain callers talk
to ``tiny`` in real time for 5 to 40 s and call again. After a tenth of the time and at the end all callers
disconnect: the samples of these two moments are compared. agent-soak.json and .png have a sample of each
second.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import numpy as np

from antiphon_client.load import Stop
from lab.bench import memory_soak
from lab.bench.agent_caller import AgentCaller, CallError, Question, at_any_phase, calling, questions
from lab.bench.agent_server import agent_server
from lab.bench.harness import Values, tell, terminable
from lab.bench.soak import Sample, Watch, write
from tests.support.text_model import Answer, TextModelServer, calls, ending, piece, says

CALL_S: Final = (5.0, 40.0)
VANISHING_SHARE: Final = 0.3
FAULTY_SHARE: Final = 0.5
RECENT: Final = 2000
"""Number of recent latencies of plain calls for the p99."""

SETTLE_S: Final = 60.0
"""Seconds for rows to become free after all callers have disconnected."""

ANSWER: Final = "one two three four five six seven eight nine ten"
FAULTS: Final[Mapping[str, Answer]] = MappingProxyType(
    {
        "slow": Answer([*[piece(f"{it} ") for it in ANSWER.split()], *ending()], pause_s=0.5),
        "cut": Answer([piece("one "), piece("two ")], is_cut=True),
        "malformed": Answer([piece("one "), "data: {\n\n"]),
        "full": Answer(status=429, headers={"Retry-After": "1"}),
        "unavailable": Answer(status=503),
        "broken": Answer(status=500),
        "hanging": Answer(stays=True),
        "stopping": Answer([piece("one "), piece("two ")], stays=True),
        "endless": Answer([piece("and ")], repeats=True, pause_s=0.01),
        "tool": calls(("weather", "{}")),
    }
)


@dataclass
class Talks:
    """The agents' calls so far: the numbers of replies and of ended calls by outcome."""

    replies: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    async def call_again(self, http: aiohttp.ClientSession, url: str, number: int) -> None:
        """Run one caller's calls, one after the other."""
        chance, clips = random.Random(number), questions()
        while True:
            until_s = time.monotonic() + chance.uniform(*CALL_S)
            try:
                async with calling(http, url, f"caller {number}") as caller:
                    try:
                        while time.monotonic() < until_s:
                            await say_something(caller, chance, clips)
                    finally:
                        self.replies.update(it.status or "left" for it in caller.replies)
                    if chance.random() < VANISHING_SHARE:
                        caller.ws.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                self.ends["left"] += 1
            except (aiohttp.ClientError, CallError) as error:
                self.ends[f"{type(error).__name__}: {error}"[:30]] += 1  # "CallError: closed with 1013"
                await asyncio.sleep(1.0)


async def say_something(caller: AgentCaller, chance: random.Random, clips: Sequence[Question]) -> None:
    """Ask a question; then wait for the answer, or interrupt or cancel it at a random moment."""
    number = len(caller.replies)
    caller.say(at_any_phase(chance, chance.choice(clips).pcm))
    if chance.random() < 0.5:
        await asyncio.sleep(chance.uniform(0.5, 6.0))
        if chance.random() < 0.3:
            await caller.send("response.cancel")
        return
    await caller.until(lambda: any(it.status for it in caller.replies[number:]), 20.0)
    await asyncio.sleep(chance.uniform(0.0, 1.0))


async def fail_at_random(text: TextModelServer, chance: random.Random) -> None:
    """Keep the text model supplied with randomly chosen next answers, and clear its recorded requests."""
    faults = list(FAULTS.values())
    while True:
        while len(text.answers) < 20:
            text.answers.append(chance.choice(faults) if chance.random() < FAULTY_SHARE else says(ANSWER))
        text.requests.clear()
        text.headers.clear()
        await asyncio.sleep(1.0)


async def settled(watch: Watch, http: aiohttp.ClientSession) -> Sample:
    """Return a sample of the server once its rows are free, or after a minute."""
    give_up_s = time.monotonic() + SETTLE_S
    while (idle := await watch.sample(http)).rows and time.monotonic() < give_up_s:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    tell(f"idle: {idle}")
    return idle


async def load(
    watch: Watch, http: aiohttp.ClientSession, seconds: float, tasks: Sequence[Coroutine[Any, Any, None]]
) -> Sample:
    """Run all ``tasks`` for a while; returns a sample of the server after their end.

    Raises:
        Exception: one of them ended early.
    """
    running = [asyncio.ensure_future(it) for it in (watch.run(http, time.monotonic() + seconds), *tasks)]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return await settled(watch, http)


async def soak(seconds: float, agents: int, callers: int) -> tuple[Values, list[Sample]]:
    """Run the soak; returns the results and the samples of the server."""
    text, talks = TextModelServer(), Talks()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    models = [part for name in ("tiny", "tiny-stt", "tiny-tts") for part in ("--model", name)]
    slots = 2 * max(agents, callers)  # calls that vanish keep theirs for a while
    async with (
        text.serve(),
        agent_server(text.url, *models, slots=slots) as (server, log),
        aiohttp.ClientSession(connector=connector) as http,
    ):
        plain = memory_soak.Soak(memory_soak.Settings(), server.url, Stop())
        await plain.learn()

        def losses() -> tuple[float, int]:
            recent = [it for it in plain.tally.latency_ms[-RECENT:] if not math.isnan(it)]
            return (float(np.percentile(recent, 99)) if recent else 0.0), plain.tally.counts.lost

        watch = Watch(server.url, server.processes, losses, lambda: f"{talks}, {plain.tally.outcomes}")
        idle = []
        for part_s in (seconds / 10, 9 * seconds / 10):
            tasks = [talks.call_again(http, server.url, number) for number in range(agents)]
            tasks += [plain.call_again(http, number) for number in range(callers)]
            tasks.append(fail_at_random(text, random.Random(agents)))
            idle.append(await load(watch, http, part_s, tasks))
        lines = log.read_text().splitlines()
        errors = [line for line in lines if "Traceback" in line or "level=error" in line]
    values = {
        "agents": {"replies": dict(talks.replies), "ends": dict(talks.ends)},
        "plain": {"outcomes": dict(plain.tally.outcomes), **asdict(plain.tally.counts)},
        "idle": [asdict(each) for each in idle],
        "errors": errors[:20],
    }
    return values, watch.samples


def main(argv: Sequence[str]) -> int:
    """Run, write JSON and plot; returns 1 if a frame was lost, a row was leaked, or the server had an
    error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", nargs="?", type=float, default=2700.0, help="[%(default)s]")
    parser.add_argument("--agents", type=int, default=4, help="callers of the agent [%(default)s]")
    parser.add_argument("--plain", type=int, default=4, help="callers of tiny [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    args = parser.parse_args(argv)
    with terminable("lab.bench.agent_soak"):
        values, samples = asyncio.run(soak(args.seconds, args.agents, args.plain))
    write(samples, args.out, "agent-soak", values)
    agents, plain, (before, after) = values["agents"], values["plain"], values["idle"]
    print(f"agents: replies {agents['replies']}, calls {agents['ends']}")
    print(
        f"plain calls {plain['outcomes']}: {plain['expected']:,} frames, {plain['lost']} lost, "
        f"{plain['late']} late"
    )
    for key in ("rows", "memory_mib", "open_files", "threads"):
        print(f"{key} without calls: {before[key]:.1f} after a tenth of it, {after[key]:.1f} at the end")
    print(f"{len(values['errors'])} errors in the server's log {values['errors'][:3]}")
    return int(bool(plain["lost"] or after["rows"] or values["errors"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

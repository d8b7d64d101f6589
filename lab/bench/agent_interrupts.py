"""Measure interruptions of a voice agent: when its sound stops, and which words its history keeps.

    python -m lab.bench.agent_interrupts                    200 interruptions by 8 callers, about two minutes
    python -m lab.bench.agent_interrupts --quick            four, to see that it works

Each caller asks, waits for a random part of the answer, and asks the next question at once. Sound stops when
the caller's player has nothing left to play, counted from 200 ms after the first loud block. The history is
the text of the answer in the next request to the text model; a word of it counts as heard if it was played to
its end.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np

from antiphon_client.measures import Distribution
from lab.bench import agent_latency
from lab.bench.agent_caller import (
    BLOCK,
    RATE,
    AgentCaller,
    CallError,
    Question,
    at_any_phase,
    calling,
    loud_blocks,
    questions,
)
from lab.bench.harness import Results, Values, machine_line, tell, terminable, warn_if_busy
from lab.bench.pages import write_page
from lab.bench.text_tap import TextTap

ANSWER: Final = "one two three four five six seven eight nine ten"
"""About four seconds of ``tiny-tts``."""

LATEST_S: Final = 4.5
"""Latest interruption of an answer in seconds: some interruptions meet its end."""

SPEECH_S: Final = 0.2
"""Seconds of the caller's speech before sound should stop."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    calls: int = 8
    interruptions: int = 200


@dataclass(frozen=True, slots=True)
class Interruption:
    """One interruption. ``sent_ms`` and ``played_ms`` are the times of the last sound received and of the
    last sound played, counted from 200 ms of speech. ``heard`` are the played words, ``kept`` the words in
    the history."""

    sent_ms: float
    played_ms: float
    heard: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def unheard(self) -> int:
        """The number of words in the history that were not played."""
        return sum(word not in self.heard for word in self.kept)


async def answered(caller: AgentCaller, replies: int, clips: Sequence[Question]) -> None:
    """Wait for the sound of another reply than the first ``replies`` replies; without one, ask again, at most
    three times.

    Raises:
        CallError: no answer came.
    """
    for clip in clips[:3]:
        if await caller.until(
            lambda: bool(caller.replies[replies:]) and caller.replies[-1].samples > 0, agent_latency.ANSWER_S
        ):
            return
        tell(f"{caller.name} got no answer in {agent_latency.ANSWER_S:.0f} s, and asks again")
        caller.say(clip.pcm)
    raise CallError(f"{caller.name} got no answer to four questions")


async def interrupt(
    caller: AgentCaller, tap: TextTap, chance: random.Random, clips: Sequence[Question]
) -> Interruption | None:
    """Let the current answer play for a while, and ask the next question; None if the answer was played to
    its end."""
    reply, number = caller.replies[-1], len(caller.replies)
    before = tap.requests[caller.name][-1].said
    await asyncio.sleep(chance.uniform(0, LATEST_S))
    spoken = at_any_phase(chance, chance.choice(clips).pcm)
    first_loud = int(np.argmax(loud_blocks(spoken))) * BLOCK
    speech_s = caller.say(spoken) + first_loud / RATE + SPEECH_S
    await answered(caller, number, clips)
    if reply.status == "completed" and math.isinf(reply.stopped_s):
        return None
    kept = tap.requests[caller.name][-1].said[len(before) :]
    return Interruption(
        sent_ms=1000 * (reply.last_s - speech_s),
        played_ms=1000 * (reply.played_to_s - speech_s),
        heard=tuple(reply.heard_words),
        kept=tuple(" ".join(kept).split()),
    )


async def talk(url: str, tap: TextTap, number: int, settings: Settings) -> list[Interruption]:
    """Run one caller's interruptions, and return them."""
    chance, found = random.Random(number), list[Interruption]()
    wanted, clips = -(-settings.interruptions // settings.calls), questions()
    async with aiohttp.ClientSession() as http:
        await asyncio.sleep(chance.uniform(0, 1))
        async with calling(http, url, f"caller {number}") as caller:
            caller.say(clips[0].pcm)
            await answered(caller, 0, clips)
            while len(found) < wanted:
                one = await interrupt(caller, tap, chance, clips)
                found += [] if one is None else [one]
                if number == 0 and one is not None and len(found) % 5 == 0:
                    tell(f"interruption {len(found)} of {wanted}")
    return found


async def measure(settings: Settings) -> Values:
    """Run the interruptions of all callers, and return the results."""
    async with agent_latency.served(agent_latency.Settings(), settings.calls, ANSWER) as (server, tap):
        talks = (talk(server.url, tap, number, settings) for number in range(settings.calls))
        return {"interruptions": [asdict(it) for found in await asyncio.gather(*talks) for it in found]}


def render(values: Values) -> str:
    """Return the report in Markdown."""
    found = [Interruption(**it) for it in values["attempts"]["interruptions"]["interruptions"]]
    rows = [
        f"| {name} | {it.p50:.0f} | {it.p95:.0f} | {it.max:.0f} |\n"
        for name, it in (
            ("last sound received", Distribution.of([it.sent_ms for it in found])),
            ("last sound played", Distribution.of([it.played_ms for it in found])),
        )
        if it is not None
    ]
    heard, kept = sum(len(it.heard) for it in found), sum(len(it.kept) for it in found)
    return (
        "# What an interruption of a voice agent costs\n\n"
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}.\n\n"
        f"{len(found)} interruptions: {sum(it.unheard for it in found)} words in the history that were not "
        f"heard, {kept} of {heard} words that were heard are in it.\n\n"
        "| after 200 ms of speech | p50, ms | p95, ms | most, ms |\n|---|---|---|---|\n" + "".join(rows)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write JSON and text; returns 1 if the history has a word that was not played."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.agent_interrupts", description=(__doc__ or "").partition("\n")[0]
    )
    own = Settings()
    parser.add_argument("--calls", type=int, default=own.calls, help="calls at once [%(default)s]")
    parser.add_argument("--interruptions", type=int, default=own.interruptions, help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="four interruptions, two callers")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    args = parser.parse_args(argv)
    settings = Settings(2, 4) if args.quick else Settings(args.calls, args.interruptions)
    results = Results(args.out / "agent-interrupts.json", settings=asdict(settings), resume=False)
    warn_if_busy()
    with terminable("lab.bench.agent_interrupts"):
        results.attempt("interruptions", lambda: asyncio.run(measure(settings)))
    print(write_page(args.out / "agent-interrupts.md", render(results.values)))
    found = results.values["attempts"]["interruptions"]["interruptions"]
    return int(not found or any(Interruption(**it).unheard for it in found))


if __name__ == "__main__":
    sys.exit(main())

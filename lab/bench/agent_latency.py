"""Measure the latency of a voice agent, and how often it mistakes a caller's pause for the end of a turn.

    python -m lab.bench.agent_latency                       1 and 8 calls, a text model that answers at once
    python -m lab.bench.agent_latency --pause-ms 400        each question holds a pause
    python -m lab.bench.agent_latency --llm http://127.0.0.1:8080/v1    a real text model
    python -m lab.bench.agent_latency --quick               two turns, to see that it works

Callers of OpenAI Realtime ask the clients' clips in real time, in events of 40 ms, on the server's machine.
The decision is the time from the last loud block of a question to the server's `speech_stopped`. The wait is
the time from there to the first sound; its parts are the flush (until the request to the text model), the
text (until its first words), and the speech (the rest). The first turn of each call is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import aiohttp

from antiphon.arrays import FloatArray
from antiphon_client.measures import Distribution
from lab.bench.agent_caller import RATE, AgentCaller, at_any_phase, calling, questions, with_pause
from lab.bench.agent_server import agent_server
from lab.bench.harness import (
    Results,
    RunningServer,
    Values,
    machine_line,
    tell,
    terminable,
    warn_if_busy,
)
from lab.bench.pages import write_page
from lab.bench.text_tap import TextTap
from tests.support.text_model import TextModelServer, says

ANSWER: Final = "the sky is blue"
ANSWER_S: Final = 20.0
"""Seconds after which a turn without sound counts as unanswered."""

BETWEEN_S: Final = (0.2, 0.8)
"""Seconds from the end of an answer to the next question."""

PARTS: Final = ("decision", "wait", "flush", "text", "speech", "audible")
MEANS: Final = ("flush", "text", "sound")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run."""

    calls: tuple[int, ...] = (1, 8)
    turns: int = 25
    pause_ms: int = 0
    llm: str | None = None
    stt: str = "tiny-stt"
    tts: str = "tiny-tts"


@dataclass(frozen=True, slots=True)
class Turn:
    """The latencies of one question in ms. ``wait`` is the time from the decision to the first sound;
    ``flush``, ``text`` and ``speech`` are its parts, and ``audible`` is the time from the decision to the
    first audible sound. ``cuts`` is the number of ends of turn that the server detected within the
    question."""

    decision: float
    flush: float
    text: float
    speech: float
    audible: float
    cuts: int

    @property
    def wait(self) -> float:
        """Time from the decision to the first sound; NaN without one."""
        return self.flush + self.text + self.speech


async def ask(caller: AgentCaller, tap: TextTap, asked: FloatArray) -> Turn:
    """Ask a question, wait for the end of the answer, and return the times of the turn."""
    stops, replies = len(caller.stopped_s), len(caller.replies)
    ended_s = caller.say(asked) + asked.size / RATE
    await asyncio.sleep(max(0.0, ended_s - time.monotonic()))
    cuts = len(caller.stopped_s) - stops
    has_answer = await caller.until(
        lambda: (
            len(caller.stopped_s) > stops + cuts
            and any(it.samples and it.first_s > ended_s for it in caller.replies[replies:])
        ),
        ANSWER_S,
    )
    if not has_answer:
        decided_s = caller.stopped_s[-1] if len(caller.stopped_s) > stops + cuts else math.nan
        return Turn(1000 * (decided_s - ended_s), math.nan, math.nan, math.nan, math.nan, cuts)
    await caller.settled()
    decided_s = caller.stopped_s[stops + cuts]
    reply = next(it for it in caller.replies[replies:] if it.first_s > ended_s)
    request = [it for it in tap.requests[caller.name] if it.text_s < reply.first_s][-1]
    edges = [decided_s, max(decided_s, request.asked_s), max(decided_s, request.text_s), reply.first_s]
    flush, text, speech = (1000 * (b - a) for a, b in itertools.pairwise(edges))
    audible = 1000 * (reply.audible_s - decided_s)
    return Turn(1000 * (decided_s - ended_s), flush, text, speech, audible, cuts)


async def talk(url: str, tap: TextTap, number: int, settings: Settings) -> list[Turn]:
    """Run one call of several turns; returns all turns but the first, which is not counted."""
    chance, turns = random.Random(number), list[Turn]()
    clips = [with_pause(it.pcm, settings.pause_ms) for it in questions()]
    async with aiohttp.ClientSession() as http:
        await asyncio.sleep(chance.uniform(0, 1))
        async with calling(http, url, f"caller {number}", stt=settings.stt) as caller:
            for turn in range(settings.turns + 1):
                await asyncio.sleep(chance.uniform(*BETWEEN_S))
                turns.append(await ask(caller, tap, at_any_phase(chance, chance.choice(clips))))
                if number == 0 and turn % 5 == 0:
                    tell(f"turn {turn} of {settings.turns}")
    return turns[1:]


@asynccontextmanager
async def served(settings: Settings, calls: int, answer: str) -> AsyncIterator[tuple[RunningServer, TextTap]]:
    """Run a server with an agent, and a recorder between the agent and its text model.

    The text model is ``settings.llm``, or a scripted one that gives ``answer`` at once.
    """
    async with TextModelServer(usual=says(answer)).serve() as scripted:
        tap = TextTap(settings.llm or scripted.url)
        models = ("--model", settings.stt, "--model", settings.tts)
        async with tap.running() as tapped, agent_server(tapped, *models, slots=calls) as (server, _):
            yield server, tap


async def measure(calls: int, settings: Settings) -> Values:
    """Run ``calls`` simultaneous calls; returns the times of all turns and the server's own means, in ms."""
    async with served(settings, calls, ANSWER) as (server, tap):
        talks = (talk(server.url, tap, number, settings) for number in range(calls))
        turns = [turn for found in await asyncio.gather(*talks) for turn in found]
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
            metrics = await response.text()
    means = {name: mean_ms(metrics, name) for name in MEANS}
    return {"turns": [asdict(turn) for turn in turns], "server_means_ms": means}


def mean_ms(metrics: str, name: str) -> float | None:
    """Return the mean of a histogram of the agent in ms; None without a value."""
    total, count = (
        sum(float(it) for it in re.findall(rf"^antiphon_agent_{name}_seconds_{end}\S* (\S+)", metrics, re.M))
        for end in ("sum", "count")
    )
    return 1000 * total / count if count else None


def line(part: str, turns: Sequence[Turn]) -> str:
    """Return a row of the table: percentiles, and the percentage that a part has of decision and wait."""
    found = Distribution.of([getattr(turn, part) for turn in turns])
    if found is None:
        return f"| {part} | | | | |"
    answered = [turn for turn in turns if not math.isnan(turn.wait)]
    whole = sum(turn.decision + turn.wait for turn in answered)
    share = sum(getattr(turn, part) for turn in answered) / whole if whole else math.nan
    shown = "" if part in ("wait", "audible") else f"{share:.0%}"
    return f"| {part} | {found.p50:.0f} | {found.p95:.0f} | {found.max:.0f} | {shown} |"


def render(values: Values) -> str:
    """Return the report in Markdown."""
    settings = values["settings"]
    pause = f", each question with a pause of {settings['pause_ms']} ms" if settings["pause_ms"] else ""
    text_model = settings["llm"] or "a text model that answers at once"
    head = f"`{values['command']}`, {values['started_at']}. {machine_line(values)}.\n\n{text_model}{pause}.\n"
    parts = [head]
    for name, attempt in values["attempts"].items():
        turns = [Turn(**turn) for turn in attempt["turns"]]
        silent = sum(math.isnan(turn.wait) for turn in turns)
        cut = sum(bool(turn.cuts) for turn in turns)
        means = ", ".join(
            f"{it} {ms:.0f} ms" for it, ms in attempt["server_means_ms"].items() if ms is not None
        )
        parts.append(
            f"\n{name}: {len(turns)} turns, {silent} without an answer, {cut} ({cut / len(turns):.1%}) cut "
            f"inside. The server's own means: {means}.\n\n"
            "| part | p50, ms | p95, ms | most, ms | share |\n|---|---|---|---|---|\n"
            + "".join(f"{line(part, turns)}\n" for part in PARTS)
        )
    return "# How soon a voice agent answers\n\n" + "".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON and text."""
    parser = argparse.ArgumentParser(
        prog="lab.bench.agent_latency", description=(__doc__ or "").partition("\n")[0]
    )
    own = Settings()
    parser.add_argument(
        "--calls", type=int, nargs="+", default=own.calls, help="numbers of calls at once [1 8]"
    )
    parser.add_argument("--turns", type=int, default=own.turns, help="questions in each call [%(default)s]")
    parser.add_argument(
        "--pause-ms", type=int, default=own.pause_ms, help="pause within each question [none]"
    )
    parser.add_argument(
        "--llm", metavar="URL", help="address of a text model, with /v1 [one that answers at once]"
    )
    parser.add_argument("--stt", default=own.stt, help="[%(default)s]")
    parser.add_argument("--tts", default=own.tts, help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="two turns of one and two calls")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    args = parser.parse_args(argv)
    calls, turns = ((1, 2), 2) if args.quick else (tuple(args.calls), args.turns)
    settings = Settings(calls, turns, args.pause_ms, args.llm, args.stt, args.tts)
    name = "agent-latency" + ("-pause" if args.pause_ms else "") + ("-llm" if args.llm else "")
    results = Results(args.out / f"{name}.json", settings=asdict(settings), resume=False)
    warn_if_busy()
    with terminable("lab.bench.agent_latency"):
        for number in calls:
            shown = "1 call" if number == 1 else f"{number} calls"
            results.attempt(shown, lambda number=number: asyncio.run(measure(number, settings)))  # type: ignore[misc]
    print(write_page(args.out / f"{name}.md", render(results.values)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

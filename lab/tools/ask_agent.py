"""Ask a voice agent questions by voice, and show its transcript, its answer, and the latency.

Usage: python -m lab.tools.ask_agent URL [--turns N] [--ear] [--out REPLY.wav]

With ``--ear`` an independent recogniser, Debian's pocketsphinx with a grammar of ``tiny-tts``'s sentences,
transcribes the sound of the answers; the last line is the share of their words that it found. Exits with 0 if
every question was answered, and with ``--ear`` if that share is at least 80 %.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np

from antiphon.audio.wav import write_wav
from lab.bench.agent_caller import RATE, AgentCaller, HeardReply, Question, calling, questions

ANSWER_S: Final = 30.0
PAUSE_S: Final = 0.5
LEAST_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Answered:
    """One question: the agent's transcript of it, and the reply, which began ``after_ms`` later."""

    question: str
    written: str
    reply: HeardReply
    after_ms: float


async def ask(caller: AgentCaller, question: Question) -> Answered | None:
    """Ask a question, and wait for the end of the answer; None without one."""
    number, turns = len(caller.replies), len(caller.written)
    ended_s = caller.say(question.pcm) + question.pcm.size / RATE
    if not await caller.until(lambda: any(it.status for it in caller.replies[number:]), ANSWER_S):
        return None
    await caller.settled()
    await caller.until(lambda: len(caller.written) > turns, PAUSE_S)
    reply = caller.replies[-1]
    written = " ".join(caller.written[turns:])
    return Answered(question.words, written, reply, 1000 * (reply.audible_s - ended_s))


async def talk(url: str, agent: str, turns: int) -> list[Answered | None]:
    """Make one call that asks ``turns`` questions."""
    async with aiohttp.ClientSession() as http, calling(http, url, "You are kind.", agent=agent) as caller:
        answers = []
        for question in itertools.islice(itertools.cycle(questions()), turns):
            answers.append(await ask(caller, question))
            show(question, answers[-1])
            await asyncio.sleep(PAUSE_S)
    return answers


def show(question: Question, answered: Answered | None) -> None:
    """Print a question, its transcript, the answer and its latency as a line of the table."""
    written, said, after = "", "(nothing)", ""
    if answered is not None:
        written, said, after = answered.written, answered.reply.text, f"{answered.after_ms:.0f} ms"
    print(f"{question.words:<26}{written:<26}{said:<38}{after:>8}", flush=True)


def words_heard(answers: Sequence[Answered]) -> float:
    """Print an independent recogniser's transcript of each answer; returns the share of the answers' words
    that it found."""
    # Its requirements are not part of a server.
    from lab.train.recogniser import answers_grammar, recognise, word_errors

    texts = [it.reply.text.lower() for it in answers]
    wrong = 0
    for text, heard in zip(
        texts, recognise([it.reply.pcm for it in answers], answers_grammar()), strict=True
    ):
        wrong += min(len(text.split()), word_errors(text, heard))
        print(f"said: {text:<46} heard: {heard}")
    return 1 - wrong / max(1, sum(len(text.split()) for text in texts))


def main(argv: list[str] | None = None) -> int:
    """Ask the questions, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="address of a server with an agent")
    parser.add_argument("--agent", default="assistant", help="name of the agent [%(default)s]")
    parser.add_argument("--turns", type=int, default=6, help="questions [%(default)s]")
    parser.add_argument("--ear", action="store_true", help="transcribe the answers with pocketsphinx")
    parser.add_argument("--out", type=Path, help="WAV file for the answers")
    options = parser.parse_args(argv)
    print(f"{'question':<26}{'understood':<26}{'answer':<38}{'after':>8}")
    asked = asyncio.run(talk(options.url, options.agent, options.turns))
    answers = [it for it in asked if it is not None and it.reply.samples]
    if options.out and answers:
        gap = np.zeros(round(PAUSE_S * RATE), np.float32)
        write_wav(options.out, np.concatenate([part for it in answers for part in (it.reply.pcm, gap)]), RATE)
    print(f"{len(answers)} of {len(asked)} questions answered")
    share = 1.0
    if options.ear:
        share = words_heard(answers)
        print(f"{share:.1%} of the answers' words were heard by pocketsphinx")
    return int(len(answers) < len(asked) or share < LEAST_SHARE)


if __name__ == "__main__":
    sys.exit(main())

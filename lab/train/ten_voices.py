"""Asks a talker the questions of the page in ten held-out voices, and counts the right answers.

Usage: python -m lab.train.ten_voices --material out/material
       python -m lab.train.ten_voices --model out/train/blended --question "what colour is the sun"

Seven voices of Kokoro, and one each of flite, festival and espeak-ng, speak at five paces. Each recording is
asked after silences of random lengths, so it begins anywhere in a frame. Talker and recordings are clean and
run in this process. The exit status is 1 if an answer is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from lab.train.domain import Domain, Turn
from lab.train.kokoro import ENGLISH, PROGRAM, Kokoro, voices
from lab.train.material import Material
from lab.train.natural import LOUDNESS, spoken
from lab.train.questions import trim
from lab.train.rows import Talker
from lab.train.synthetic_voices import SAMPLE_RATE, Voice, speak
from lab.train.yardsticks import LEVEL
from tests.support.ask import QUESTIONS

PACES: Final = (1.0, 0.9, 1.1, 0.95, 1.05)
LEAD_S: Final = (0.3, 1.6)
LISTEN_S: Final = 4.5
WORDS_A_MINUTE: Final = 160


def ten_voices() -> list[Voice]:
    """Return the voices, all of them held out."""
    natural = [name for language in ENGLISH for name in voices(language, held_out=True)]
    return [
        *(Voice(PROGRAM, name) for name in natural),
        Voice("flite", "rms"),
        Voice("festival", "kal_diphone"),
        Voice("espeak-ng", "en-us+m7"),
    ]


def recording(kokoro: Kokoro, turn: Turn, voice: Voice, pace: float) -> FloatArray:
    """Return a question without silence around it, float32 ``[samples]``, at a common loudness."""
    spoken_by = Voice(voice.program, voice.name, round(WORDS_A_MINUTE * pace))
    if voice.program == PROGRAM:
        return spoken(kokoro, turn, spoken_by).pcm
    pcm = trim(speak(spoken_by, turn.question))
    level = LOUDNESS / float(np.sqrt(np.mean(np.square(pcm))))
    return (pcm * level).clip(-1, 1).astype(np.float32)


def tracks(kokoro: Kokoro, turn: Turn, times: int) -> list[FloatArray]:
    """Return the tracks of one question, ``times`` for each voice: a silence, the question, time to
    answer."""
    rng, found = random.Random(turn.question), list[FloatArray]()
    for voice in ten_voices():
        said = [recording(kokoro, turn, voice, pace) for pace in PACES[:times]]
        for index in range(times):
            lead = np.zeros(int(SAMPLE_RATE * rng.uniform(*LEAD_S)), np.float32)
            heard = said[index % len(said)] * np.float32(LEVEL)
            found.append(np.concatenate([lead, heard, np.zeros(int(SAMPLE_RATE * LISTEN_S), np.float32)]))
    return found


def wrong_answers(talker: Talker, turn: Turn, asked: Sequence[FloatArray]) -> Counter[str]:
    """Return the answers other than the right one, each with its number."""
    return Counter(text for text in (reply.text() for reply in talker.listen(asked)) if text != turn.answer)


def main(argv: list[str] | None = None) -> int:
    """Ask, and print a line for each question."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny", help="built-in model or folder [%(default)s]")
    parser.add_argument("--backend", help="[the fastest for the model]")
    parser.add_argument("--material", type=Path, default=Path("out/material"), help="[%(default)s]")
    parser.add_argument("--question", action="append", help="ask this instead of the page's questions")
    parser.add_argument("--times", type=int, default=10, help="in each voice [%(default)s]")
    options = parser.parse_args(argv)
    domain = Domain()
    questions = options.question or [words.lower() for words, _ in QUESTIONS.values()]
    for question in questions:
        if not domain.is_question(question):
            parser.error(f"{question!r} is no question of the domain")
    kokoro = Kokoro(Material(options.material).kokoro)
    talker = Talker(options.model, options.backend, rows=16)
    wrong = 0
    for question in questions:
        turn = domain.turn(question)
        asked = tracks(kokoro, turn, options.times)
        faults = wrong_answers(talker, turn, asked)
        wrong += faults.total()
        said = "; ".join(f"{count} x {text or '(nothing)'}" for text, count in faults.most_common(4))
        sys.stdout.write(f"{question:<32}{len(asked) - faults.total():>4} of {len(asked)}  {said}\n")
        sys.stdout.flush()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())

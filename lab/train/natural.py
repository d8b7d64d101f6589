"""Synthesise the domain's questions, and other speech, in natural voices: shards, each from its own seed.

Usage: python -m lab.train.natural --material out/material --shards 40 --out out/train/natural

For a talker: --mix talker, and some shards of --mix short, which has the page's questions, and of --mix sums.

The shards are those of lab.train.questions, with the start of every word. By default a quarter of the turns
are spoken by Kokoro's voices, single or mixed in pairs, at 0.8 to 1.3 times their speed, a third modified by
another throat; its voices of seven other languages speak utterances to be refused. The others are spoken by
hibari in two accents, each by another throat, for many texts: a second takes 0.03 s of a core, and 0.6 s by
Kokoro.
Existing shards are kept. Two processes share the work with --part 0/2 and --part 1/2.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from lab.train import held_out as kept
from lab.train import hibari, kokoro
from lab.train.domain import NUMBERS, REFUSAL, Domain, Turn
from lab.train.hibari import Hibari
from lab.train.kokoro import ENGLISH, MIXED, Kokoro, voices
from lab.train.material import Material
from lab.train.outside import ABROAD, Outside
from lab.train.outside_texts import ABROAD_SENTENCES
from lab.train.phrasings import PHRASINGS
from lab.train.questions import Utterance, audible, write_shard
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.throats import Throat

UTTERANCES_PER_SHARD: Final = 200
"""About six minutes of speech."""
SPEEDS: Final = (0.8, 1.3)
MIXED_SHARE: Final = 0.3
BENT_SHARE: Final = 0.3
HIBARI_SHARE: Final = 0.75
"""Share of the training's English turns spoken by hibari, by default."""
BRITISH_SHARE: Final = 0.35
"""Share of hibari's turns in its British accent."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of a training's utterances; the others are questions.

    Halves of questions, words in random order, lists of numbers, sums and differences as lists ("five, plus,
    four"), answers read aloud, speech outside the domain. With ``questions``, all utterances are drawn from
    these.
    """

    half: float = 0.0
    words: float = 0.0
    lists: float = 0.0
    sums: float = 0.0
    answers: float = 0.0
    outside: float = 0.0
    questions: tuple[str, ...] = ()


RECOGNISER: Final = Mix(half=0.05, words=0.2, lists=0.15, answers=0.1, outside=0.2)
"""The tests have neither random words nor lists or answers. With 0.1 of words and 0.3 outside the domain a
recogniser took unknown phrasings for speech outside the domain.
"""
SHORT: Final = Mix(
    questions=(
        *("what is your name", "what is five plus four", "what is two plus three", "what is two plus two"),
        *("what colour is snow", "what colour is a tomato", "what colour is the sun", "what colour is grass"),
        *("what does a cat say", "what does a cow say", "what does a dog say", "what comes after monday"),
    )
)
"""The questions of the page, and some like them."""
MIXES: Final[Mapping[str, Mix]] = MappingProxyType(
    {
        "recogniser": RECOGNISER,
        "talker": Mix(half=0.06, words=0.12, outside=0.22),
        "short": SHORT,
        "sums": Mix(sums=1.0),
    }
)
LIST: Final = "list"
"""Intent of a list: one to five numbers or words, or a sum, with pauses between the words."""
ABROAD_SHARE: Final = 0.3
"""Share of the speech outside the domain in other languages."""
LOUDNESS: Final = 0.1
"""Root mean square of an utterance: Kokoro's voices differ by 7 dB; the caller's distance is drawn later."""


class Planner:
    """A source of random turns and their voices, for training or for the tests."""

    def __init__(
        self, held_out: bool = False, mix: Mix = RECOGNISER, hibari_share: float = HIBARI_SHARE
    ) -> None:
        self._domain, self._outside, self._held_out = Domain(), Outside(held_out), held_out
        self._mix, self._hibari_share = mix, hibari_share
        self._answers = self._domain.answers()
        self._english = tuple(name for language in ENGLISH for name in voices(language, held_out=held_out))

    def draw(self, rng: random.Random, intent: str | None = None) -> tuple[Turn, Voice]:
        """Draw a turn and its voice, optionally of one intent; a mix with ``questions`` has no intents."""
        if self._mix.questions:
            return self._domain.turn(rng.choice(self._mix.questions)), self._english_voice(rng)
        kind = 1.0 if intent else rng.random()
        if kind < self._mix.outside:
            return self.draw_outside(rng)
        return self._in_the_domain(rng, kind - self._mix.outside, intent), self._english_voice(rng)

    def draw_outside(self, rng: random.Random) -> tuple[Turn, Voice]:
        """Draw speech outside the domain, in English or in a language with a voice."""
        if rng.random() < ABROAD_SHARE:
            return self._abroad(rng)
        while True:
            turn, _ = self._outside.draw(rng)
            if turn.intent != ABROAD:
                return turn, self._english_voice(rng)

    def _in_the_domain(self, rng: random.Random, kind: float, intent: str | None) -> Turn:
        mix = self._mix
        if kind < mix.half:
            return self._domain.draw_half(rng, is_held_out=self._held_out)
        if self._held_out:
            return self._domain.draw_held_out(rng, intent or rng.choice(list(PHRASINGS)))
        if kind < mix.half + mix.words:
            return self._domain.draw_words(rng)
        if kind < mix.half + mix.words + mix.lists:
            return self._list(rng)
        if kind < mix.half + mix.words + mix.lists + mix.sums:
            return self._sum(rng)
        if kind < mix.half + mix.words + mix.lists + mix.sums + mix.answers:
            return Turn("words", rng.choice(self._answers), "", False)
        return self._domain.draw(rng, intent)

    def _list(self, rng: random.Random) -> Turn:
        words = NUMBERS if rng.random() < 0.8 else self._domain.words()
        while True:
            text = " ".join(rng.choices(words, k=rng.randint(1, 5)))
            if not self._domain.is_question(text):
                return Turn(LIST, text, "", False)

    def _sum(self, rng: random.Random) -> Turn:
        """A sum or a difference with a pause after each word."""
        intent, sign = rng.choice((("add", "plus"), ("subtract", "minus")))
        fact = rng.choice(self._domain.facts[intent])
        return Turn(LIST, f"{fact.slots['a']} {sign} {fact.slots['b']}", fact.answer, False)

    def _abroad(self, rng: random.Random) -> tuple[Turn, Voice]:
        spoken = {name: voices(name, held_out=self._held_out) for name in ABROAD_SENTENCES}
        language = rng.choice([name for name, names in spoken.items() if names])
        sentences = [
            one for one in ABROAD_SENTENCES[language] if kept.is_sentence_held_out(one) == self._held_out
        ]
        turn = Turn(ABROAD, rng.choice(sentences), REFUSAL, self._held_out)
        return turn, self._voice(rng, spoken[language])

    def _english_voice(self, rng: random.Random) -> Voice:
        if self._held_out or rng.random() >= self._hibari_share:
            return self._voice(rng, self._english)
        accent = ENGLISH[rng.random() < BRITISH_SHARE]
        return Voice(hibari.PROGRAM, accent, round(160 * rng.uniform(*SPEEDS)), throat=Throat.drawn(rng))

    def _voice(self, rng: random.Random, names: tuple[str, ...]) -> Voice:
        """One of these voices of Kokoro, or in training also a mixture of two; the tests have no mixtures
        or modified voices."""
        pace = round(160 * rng.uniform(*SPEEDS))
        if self._held_out:
            return Voice(kokoro.PROGRAM, rng.choice(names), pace)
        is_mixed = len(names) > 1 and rng.random() < MIXED_SHARE
        name = MIXED.join(rng.sample(names, 2)) if is_mixed else rng.choice(names)
        throat = Throat.drawn(rng) if rng.random() < BENT_SHARE else None
        return Voice(kokoro.PROGRAM, name, pace, throat=throat)


def spoken(engine: Kokoro | Hibari, turn: Turn, voice: Voice) -> Utterance:
    """Synthesise a turn in a natural voice, without silence at its ends and at constant loudness."""
    said = engine.speak(voice, turn.question, ", " if turn.intent == LIST else " ")
    heard = audible(said.pcm)
    first_s, pcm = heard.start / SAMPLE_RATE, said.pcm[heard]
    pcm = pcm * np.float32(LOUDNESS / max(1e-6, float(np.sqrt(np.mean(pcm**2)))))
    starts = tuple(round(max(0.0, start - first_s), 4) for start in said.starts_s)
    return Utterance(turn, voice, 1.0, pcm.clip(-1, 1), starts)


Engines = Mapping[str, Kokoro | Hibari]
"""The synthesisers by the ``program`` of their voices."""


def make_shard(
    path: Path,
    seed: int,
    engines: Engines,
    *,
    planner: Planner,
    kind: str = "train",
    utterances: int = UTTERANCES_PER_SHARD,
) -> float:
    """Write one shard; returns the length of its speech in seconds. Each ``kind`` has its own seeds."""
    rng = random.Random(f"natural-{kind}-{seed}")
    plans = [planner.draw(rng) for _ in range(utterances)]
    return write_shard(path, [spoken(engines[voice.program], turn, voice) for turn, voice in plans])


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--material", type=Path, default=Path("out/material"), help="[%(default)s]")
    parser.add_argument("--shards", type=int, default=40, help="about six minutes of speech each")
    parser.add_argument(
        "--utterances", type=int, default=UTTERANCES_PER_SHARD, help="of a shard [%(default)s]"
    )
    parser.add_argument(
        "--mix", choices=MIXES, default="recogniser", help="what is said in training [%(default)s]"
    )
    parser.add_argument(
        "--hibari",
        type=float,
        default=HIBARI_SHARE,
        metavar="SHARE",
        help="of the English turns of training that hibari speaks [%(default)s]",
    )
    parser.add_argument("--held-out", action="store_true", help="voices and turns that training never hears")
    parser.add_argument("--part", default="0/1", help="this process's share: I/N")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of each process [%(default)s]")
    options = parser.parse_args(argv)
    share, shares = map(int, options.part.split("/"))
    options.out.mkdir(parents=True, exist_ok=True)
    material = Material(options.material)
    engines: Engines = {
        kokoro.PROGRAM: Kokoro(material.kokoro, options.threads),
        hibari.PROGRAM: Hibari(material.hibari, options.threads),
    }
    mix = RECOGNISER if options.held_out else MIXES[options.mix]
    planner = Planner(options.held_out, mix, options.hibari)
    kind = "test" if options.held_out else {"recogniser": "train"}.get(options.mix, options.mix)
    start_s = time.monotonic()
    for seed in range(options.shards)[share::shares]:
        path = options.out / f"{seed:04d}.npz"
        if not path.exists():
            seconds = make_shard(
                path, seed, engines, planner=planner, kind=kind, utterances=options.utterances
            )
            sys.stderr.write(f"{path.name}: {seconds:.0f} s of speech, {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

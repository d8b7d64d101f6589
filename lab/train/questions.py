"""Synthesise the questions of the domain, and other speech, in many voices: shards, each made from its own
seed.

Usage: python -m lab.train.questions --shards 60 --out out/train/questions

Existing shards are kept, so a stopped run is resumed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.train.domain import Domain, Turn
from lab.train.outside import Outside
from lab.train.phrasings import PHRASINGS
from lab.train.rhvoice import require_rhvoice
from lab.train.synthetic_voices import (
    Voice,
    draw_voice,
    require_held_out_speakers,
    require_pico,
    require_speakers,
    speak,
)

UTTERANCES_PER_SHARD = 500
WORDS_SHARE = 0.15
"""Default share of the training's utterances that are words in random order."""
HALF_SHARE, OUTSIDE_SHARE = 0.08, 0.22
"""Shares of half questions and of speech outside the domain; for the tests these shares each, and no
words."""
HESITANT_SHARE, PAUSES_S = 0.2, (0.2, 1.0)
"""Share of the training's questions with a pause, before they are stretched."""
QUIET = 10 ** (-40 / 20)
"""Share of its peak below which an utterance has not begun, or is over."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """One spoken question: its turn, its voice, the factor by which the sound is stretched, and the sound.

    ``starts_s`` are the starts of its words in seconds, if the synthesiser reports them.
    """

    turn: Turn
    voice: Voice
    stretch: float
    pcm: NDArray[np.float32]
    starts_s: tuple[float, ...] = ()


def audible(pcm: NDArray[np.float32]) -> slice:
    """Return the range of samples without the near-silence at both ends."""
    loud = np.flatnonzero(np.abs(pcm) > QUIET * np.abs(pcm).max(initial=1e-6))
    return slice(int(loud[0]), int(loud[-1]) + 1) if loud.size else slice(0, pcm.size)


def trim(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the audible part of ``pcm [samples]``."""
    return pcm[audible(pcm)]


def stretched(pcm: NDArray[np.float32], factor: float) -> NDArray[np.float32]:
    """Return ``pcm`` played at ``1 / factor`` of its speed: longer and lower for a factor above 1."""
    at = np.arange(int(pcm.size * factor)) / factor
    return np.interp(at, np.arange(pcm.size), pcm).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters of a shard: the ``further`` synthesisers, and the share of the training speech that is
    words in random order."""

    held_out: bool = False
    further: tuple[str, ...] = ()
    words_share: float = WORDS_SHARE


def plan(rng: random.Random, domain: Domain, asked: Asked) -> tuple[Turn, Voice, float]:
    """Draw a question, a voice, and a stretch factor.

    The question is drawn separately, so that another grammar leaves the rest of a shard unchanged.
    """
    kind, what = rng.random(), random.Random(rng.getrandbits(64))
    if kind < OUTSIDE_SHARE:
        turn, voice = Outside(asked.held_out).draw(what, further=asked.further)
    else:
        turn = _asked_in_the_domain(what, domain, asked, kind - OUTSIDE_SHARE)
        voice = draw_voice(rng, held_out=asked.held_out, further=asked.further)
    return turn, voice, 1.0 if asked.held_out else rng.uniform(0.83, 1.2)


def _asked_in_the_domain(rng: random.Random, domain: Domain, asked: Asked, kind: float) -> Turn:
    if kind < HALF_SHARE:
        return domain.draw_half(rng, is_held_out=asked.held_out)
    if asked.held_out:
        return domain.draw_held_out(rng, rng.choice(list(PHRASINGS)))
    return domain.draw_words(rng) if kind < HALF_SHARE + asked.words_share else domain.draw(rng)


def hesitation(rng: random.Random, turn: Turn) -> tuple[int, float]:
    """Draw the word before which a question's speaker pauses, 0 for none, and the seconds of the pause."""
    words = turn.question.split()
    count = len(words) - (words[-1] == "please")  # the part before it is a whole question
    if turn.intent not in PHRASINGS or count < 4 or rng.random() >= HESITANT_SHARE:
        return 0, 0.0
    return rng.randint(2, count - 1), rng.uniform(*PAUSES_S)


def spoken_with(voice: Voice, text: str, place: int = 0, pause_s: float = 0.0) -> NDArray[np.float32]:
    """Speak ``text`` as float32 ``[samples]``, with a pause before the word at ``place`` if this is not 0."""
    if not place:
        return speak(voice, text)
    words = text.split()
    first, second = (trim(speak(voice, " ".join(part))) for part in (words[:place], words[place:]))
    return np.concatenate([first, np.zeros(int(pause_s * 24_000), np.float32), second])


def make_shard(
    path: Path, seed: int, asked: Asked, *, threads: int, utterances: int = UTTERANCES_PER_SHARD
) -> float:
    """Write one shard; returns the length of its speech in seconds."""
    rng, domain = random.Random(f"questions-{'test' if asked.held_out else 'train'}-{seed}"), Domain()
    plans = [plan(rng, domain, asked) for _ in range(utterances)]
    pauses = [(0, 0.0) if asked.held_out else hesitation(rng, turn) for turn, *_ in plans]

    def perform(item: tuple[Turn, Voice, float], pause: tuple[int, float]) -> NDArray[np.float32]:
        turn, voice, factor = item
        return trim(stretched(spoken_with(voice, turn.question, *pause), factor))

    with ThreadPoolExecutor(threads) as pool:
        spoken = list(pool.map(perform, plans, pauses))
    return write_shard(path, [Utterance(*one, pcm) for one, pcm in zip(plans, spoken, strict=True)])


def write_shard(path: Path, said: Sequence[Utterance]) -> float:
    """Write utterances: ``pcm`` int16, ``ends`` int64, the rest as JSON in ``turns``; returns their length in
    seconds."""
    told = [
        {
            "turn": asdict(one.turn),
            "voice": asdict(one.voice),
            "stretch": one.stretch,
            "starts_s": one.starts_s,
        }
        for one in said
    ]
    pcm = (np.concatenate([one.pcm for one in said]).clip(-1, 1) * 32767).astype(np.int16)
    part = path.with_suffix(".part.npz")
    np.savez(part, pcm=pcm, ends=np.cumsum([one.pcm.size for one in said]), turns=np.array(json.dumps(told)))
    part.replace(path)
    return pcm.size / 24_000


def read_shard(path: Path) -> list[Utterance]:
    """Return the utterances of one shard."""
    with np.load(path) as shard:
        pcm, ends, told = shard["pcm"], shard["ends"], json.loads(str(shard["turns"]))
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Utterance(
            Turn(**one["turn"]),
            Voice.read(one["voice"]),
            one["stretch"],
            pcm[start:end].astype(np.float32) / 32767,
            tuple(one.get("starts_s", ())),
        )
        for one, start, end in zip(told, starts, ends, strict=True)
    ]


def add_further(parser: argparse.ArgumentParser) -> None:
    """Add the options for further synthesisers."""
    parser.add_argument("--rhvoice", action="store_true", help="use RHVoice's voices too, if installed")
    parser.add_argument("--pico", action="store_true", help="use SVOX Pico's voices too, if installed")


def further_ones(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the further synthesisers that the options name.

    Raises:
        SystemExit: one of them is not installed.
    """
    required = {"rhvoice": require_rhvoice, "pico": require_pico}
    asked = tuple(name for name in required if getattr(options, name))
    for name in asked:
        required[name]()
    return asked


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=60, help="about a quarter of an hour of speech each")
    parser.add_argument(
        "--utterances", type=int, default=UTTERANCES_PER_SHARD, help="of a shard [%(default)s]"
    )
    parser.add_argument(
        "--held-out", action="store_true", help="voices and questions that training never hears"
    )
    add_further(parser)
    parser.add_argument(
        "--words",
        type=float,
        default=WORDS_SHARE,
        help="share of utterances in training that are words in random order [%(default)s]",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    most = round(1 - HALF_SHARE - OUTSIDE_SHARE, 2)
    if not 0 <= options.words <= most:
        parser.error(f"--words {options.words} is not between 0 and {most}")
    if options.held_out:
        require_held_out_speakers()
    else:
        require_speakers()
    further = () if options.held_out else further_ones(options)
    asked = Asked(options.held_out, further, options.words)
    options.out.mkdir(parents=True, exist_ok=True)
    start_s, total_s = time.monotonic(), 0.0
    for seed in range(options.shards):
        path = options.out / f"{seed:04d}.npz"
        if path.exists():
            continue
        total_s += make_shard(path, seed, asked, threads=options.threads, utterances=options.utterances)
        spent_s = time.monotonic() - start_s
        sys.stderr.write(
            f"shard {seed + 1}/{options.shards}: {total_s / 3600:.2f} h spoken in {spent_s:.0f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make what a speech synthesiser is trained on: spoken texts as codes, and the script that goes with them.

Usage: python -m train.readings --shards 8 --codec out/train/codec --out out/train/readings

The texts are answers of the domain (but none that is held out) and random sequences of its words, with
breaks and words that nobody knows in them. A shard that is there is kept.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from train.answers import Speaker
from train.codec import load_mimi
from train.domain import PHRASINGS, Domain
from train.segments import FRAME_SAMPLES, CodeArray, encode
from train.voices import SAMPLE_RATE

FloatArray = NDArray[np.float32]
LEAD_FRAMES: Final = 2
"""Silence before the first word, as a script begins."""
TAIL_FRAMES: Final = 6
COLD_FRAMES: Final = 10
SHORT_PER_SHARD: Final = 300
LONG_PER_SHARD: Final = 60
LONG_S: Final = 15.0
UNKNOWN_WORD: Final = "mhm"
"""Stands for all words that the tokenizer does not know: they are a short silence."""
UNKNOWN_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Reading:
    """A spoken text: codes int16 ``[8, frames]`` from the silence before it to the one after it.

    ``text`` is as a caller would send it. Its entries, words and breaks, begin in the frames ``starts``;
    the last of these is the frame in which all is said.
    """

    codes: CodeArray
    text: str
    starts: tuple[float, ...]


@dataclass(slots=True)
class Recording:
    """A text while it is being spoken."""

    pcm: list[FloatArray]
    parts: list[str]
    starts_s: list[float]
    seconds: float = 0.0

    @classmethod
    def empty(cls) -> Recording:
        """One with nothing said yet."""
        return cls([], [], [])

    def add(self, pcm: FloatArray, parts: Sequence[str], starts_s: Sequence[float]) -> None:
        """Go on with a sound in which some parts start."""
        self.parts += parts
        self.starts_s += [self.seconds + start_s for start_s in starts_s]
        self.pcm.append(pcm)
        self.seconds += pcm.size / SAMPLE_RATE


def _silence(seconds: float) -> FloatArray:
    return np.zeros(int(seconds * SAMPLE_RATE), np.float32)


class Texts:
    """Draws sentences: answers, and words of the domain at random."""

    def __init__(self) -> None:
        domain = Domain()
        self.words = domain.words()
        self.answers = sorted({fact.answer for known in domain.trained.values() for fact in known})

    def sentence(self, rng: random.Random) -> str:
        """An answer twice in five times, else some random words."""
        if rng.random() < 0.4:
            return rng.choice(self.answers)
        return " ".join(rng.choices(self.words, k=rng.randint(1, 8)))


def speaker_of_all_words(threads: int) -> Speaker:
    """A speaker who knows every word of the domain, in every place that a question or answer has it in."""
    domain, rng = Domain(), random.Random(1)
    asked = [
        phrase.format(**fact.slots)
        for intent, phrasings in PHRASINGS.items()
        for phrase in phrasings.trained + phrasings.held_out
        for fact in rng.sample(domain.facts[intent], min(12, len(domain.facts[intent])))
    ]
    words = [" ".join((word, word, word)) for word in domain.words()]
    return Speaker([*domain.answers(), *asked, *words], threads)


def record(rng: random.Random, texts: Texts, speaker: Speaker, *, is_long: bool) -> Recording:
    """Speak one sentence, or several with pauses and breaks between them."""
    recording = Recording.empty()
    while not recording.parts or (is_long and recording.seconds < LONG_S):
        if recording.parts:
            _pause(rng, recording)
        if rng.random() < 0.05:
            recording.add(_silence(UNKNOWN_S), [UNKNOWN_WORD], [0.0])
        answer = speaker.say(texts.sentence(rng))
        recording.add(answer.pcm, answer.words, answer.starts_s)
    return recording


def _pause(rng: random.Random, recording: Recording) -> None:
    """Go straight on, take a breath, or make a break that the text asks for."""
    kind = rng.random()
    if kind < 0.3:
        return
    if kind < 0.7:
        recording.add(_silence(rng.uniform(0.0, 0.3)), [], [])
        return
    frames = rng.randint(4, 25)
    recording.add(_silence(frames * FRAME_SAMPLES / SAMPLE_RATE), [_break(frames)], [0.0])


def _break(frames: int) -> str:
    return f'<break time="{frames * FRAME_SAMPLES / SAMPLE_RATE:.2f}s"/>'


def read(recordings: Sequence[Recording], mimi: Any) -> Iterator[Reading]:
    """Encode recordings, those of like length together."""
    for first in range(0, len(recordings), 10):
        batch = recordings[first : first + 10]
        frames = [
            LEAD_FRAMES + int(one.seconds * SAMPLE_RATE) // FRAME_SAMPLES + 1 + TAIL_FRAMES for one in batch
        ]
        pcm = np.zeros((len(batch), (COLD_FRAMES + max(frames)) * FRAME_SAMPLES), np.float32)
        for row, one in enumerate(batch):
            sound = np.concatenate(one.pcm)
            at = (COLD_FRAMES + LEAD_FRAMES) * FRAME_SAMPLES
            pcm[row, at : at + sound.size] = sound
        for one, count, codes in zip(batch, frames, encode(mimi, pcm), strict=True):
            rate = SAMPLE_RATE / FRAME_SAMPLES
            starts = tuple(LEAD_FRAMES + start_s * rate for start_s in (*one.starts_s, one.seconds))
            yield Reading(codes[:, COLD_FRAMES : COLD_FRAMES + count], " ".join(one.parts), starts)


def make_shard(path: Path, seed: int, texts: Texts, speaker: Speaker, mimi: Any) -> float:
    """Write one shard; returns its seconds."""
    rng = random.Random(f"readings-{seed}")
    kinds = [False] * SHORT_PER_SHARD + [True] * LONG_PER_SHARD
    recordings = [record(rng, texts, speaker, is_long=is_long) for is_long in kinds]
    recordings.sort(key=lambda one: one.seconds)
    readings = list(read(recordings, mimi))
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        codes=np.concatenate([one.codes for one in readings], axis=1),
        ends=np.cumsum([one.codes.shape[1] for one in readings]),
        texts=np.array([one.text for one in readings]),
        starts=np.concatenate([one.starts for one in readings]),
        counts=np.array([len(one.starts) for one in readings]),
    )
    part.replace(path)
    return sum(one.seconds for one in recordings)


def read_readings(path: Path) -> list[Reading]:
    """The readings of a shard."""
    with np.load(path) as shard:
        codes = np.split(shard["codes"], shard["ends"][:-1], axis=1)
        starts = np.split(shard["starts"], np.cumsum(shard["counts"])[:-1])
        texts = [str(text) for text in shard["texts"]]
    return [
        Reading(some, text, tuple(map(float, when)))
        for some, text, when in zip(codes, texts, starts, strict=True)
    ]


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=8, help="about half an hour of speech each")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by train.codec")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    paths = [options.out / f"{seed:04d}.npz" for seed in range(options.shards)]
    if all(path.exists() for path in paths):
        return 0
    texts, speaker = Texts(), speaker_of_all_words(options.threads)
    mimi = load_mimi(options.codec)
    mimi.eval()
    start_s = time.monotonic()
    for seed, path in enumerate(paths):
        if not path.exists():
            seconds = make_shard(path, seed, texts, speaker, mimi)
            sys.stderr.write(f"{path.name}: {seconds:.0f} s of speech, {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

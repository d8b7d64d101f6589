"""Makes the training data of a synthesiser: spoken texts as codes, with their scripts.

Usage: python -m lab.train.readings --shards 8 --codec out/train/codec --out out/train/readings \\
           [--natural out/material]

The texts are answers of the domain (except held-out ones), the same with other words, and random sequences of
its words, with breaks and unknown words. In flite's voices every word begins with a frame of the codec, so
that it has nearly constant codes, which a small model learns quickly. With --natural, hibari speaks whole
sentences instead. Existing shards are kept.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch

from antiphon.arrays import FloatArray
from lab.train import hibari
from lab.train.answers import LOUDNESS, Answer, Speaker
from lab.train.codec import load_mimi
from lab.train.domain import COLOURS, DAYS, MONTHS, NUMBERS, SOUNDS, Domain, Turn
from lab.train.held_out import is_answer_held_out
from lab.train.hibari import Hibari
from lab.train.material import Material
from lab.train.natural import spoken
from lab.train.phrasings import PHRASINGS
from lab.train.questions import stretched
from lab.train.scripts import FRAME_RATE
from lab.train.segments import FRAME_SAMPLES, CodeArray, encode
from lab.train.synthetic_voices import SAMPLE_RATE, Voice
from lab.train.throats import Throat

VOICES: Final[Mapping[str, str]] = MappingProxyType({"slt": "slt", "thomas": "awb"})
"""Names of voices, and flite's voices behind them, word by word; none is in lab.train.held_out.

A server uses the first name in alphabetical order if a client names none.
"""
NATURAL_VOICES: Final[Mapping[str, Voice]] = MappingProxyType(
    {
        "vera": Voice(hibari.PROGRAM, "en-us", 150),
        "will": Voice(hibari.PROGRAM, "en-us", 150, throat=Throat(0.85, 110.0, 0.8)),
    }
)
"""Names of voices, and hibari's voice behind them, in two throats: they speak whole sentences.

After the codec, Whisper tiny.en mishears 27 of 285 words of the second voice's answers, and 110 if each word
is stretched to whole frames.
"""
LEAD_FRAMES: Final = 2
"""Silence before the first word, as at the start of a script."""
TAIL_FRAMES: Final = 6
COLD_FRAMES: Final = 10
SHORT_PER_SHARD: Final = 300
LONG_SHARE: Final = 5
LONG_FRAMES: Final = 188
UNKNOWN_WORD: Final = "mhm"
"""Stands for all words that are not in the tokenizer: they are a short silence."""
UNKNOWN_FRAMES: Final = 3
SLACK_SAMPLES: Final = 288
"""A word is sped up by up to 12 ms to end with a frame, else slowed down."""
FADE_SAMPLES: Final = 120


@dataclass(frozen=True, slots=True)
class Reading:
    """A spoken text: codes int16 ``[8, frames]`` from the silence before it to the silence after it.

    ``text`` has the form of a caller's request. Its entries, words and breaks, begin with the frames
    ``starts``; the last of these is the frame after the speech. ``voice`` is a name of ``VOICES`` or of
    ``NATURAL_VOICES``.
    """

    codes: CodeArray
    text: str
    starts: tuple[int, ...]
    voice: str


@dataclass(slots=True)
class Recording:
    """A text while it is synthesised: sounds of whole frames, and the frames in which parts begin."""

    voice: str
    pcm: list[FloatArray]
    parts: list[str]
    starts: list[int]
    frames: int = 0

    @classmethod
    def empty(cls, voice: str) -> Recording:
        """Return a recording without content."""
        return cls(voice, [], [], [])

    def add_sentence(self, answer: Answer) -> None:
        """Append a sentence as it is spoken: each word begins in the frame of its first sound."""
        self.parts += answer.words
        self.starts += [self.frames + int(start_s * FRAME_RATE) for start_s in answer.starts_s]
        self.add(np.pad(answer.pcm, (0, -answer.pcm.size % FRAME_SAMPLES)))

    def add(self, pcm: FloatArray, part: str | None = None) -> None:
        """Append a sound of whole frames, in which ``part`` of the text begins if it is not None."""
        if part is not None:
            self.parts.append(part)
            self.starts.append(self.frames)
        self.pcm.append(pcm)
        self.frames += pcm.size // FRAME_SAMPLES


def _silence(frames: int) -> FloatArray:
    return np.zeros(frames * FRAME_SAMPLES, np.float32)


def words_in_frames(answer: Answer) -> list[FloatArray]:
    """Return the sound of each word, equally loud, and slowed down to fill whole frames.

    With silence between words instead, the recogniser understands half as many of them in the codec's sound.
    """
    edges = [*(int(start_s * SAMPLE_RATE) for start_s in answer.starts_s), answer.pcm.size]
    words = []
    for first, last in pairwise(edges):
        frames = max(1, -(-(last - first - SLACK_SAMPLES) // FRAME_SAMPLES))
        slower = stretched(answer.pcm[first:last], frames * FRAME_SAMPLES / (last - first))
        word = np.pad(slower, (0, frames * FRAME_SAMPLES - slower.size))
        fade = np.linspace(0, 1, FADE_SAMPLES, dtype=np.float32)
        word[:FADE_SAMPLES] *= fade
        word[-FADE_SAMPLES:] *= fade[::-1]
        word *= LOUDNESS / max(float(np.sqrt(np.mean(word**2))), 1e-6)
        words.append(word.clip(-1, 1))
    return words


class Texts:
    """A source of random sentences: answers of the domain, right or wrong, and sequences of its words.

    With ``most_answers``, only the first answers and their words are used.
    """

    def __init__(self, most_answers: int | None = None) -> None:
        domain = Domain()
        self.answers = [answer for answer in domain.answers() if not is_answer_held_out(answer)]
        self.answers = self.answers[:most_answers]
        self.words = domain.words()
        if most_answers is not None:
            self.words = sorted({word for answer in self.answers for word in answer.split()})
        kinds = (NUMBERS, DAYS, MONTHS, COLOURS.values(), SOUNDS, SOUNDS.values())
        known = [sorted(set(kind) & set(self.words)) for kind in kinds]
        self._alike = {word: kind for kind in known for word in kind}

    def sentence(self, rng: random.Random) -> str:
        """Draw an answer, an answer with other words of the same kinds ("two plus nine is four"), or some
        random words."""
        kind = rng.random()
        if kind < 0.2:
            return rng.choice(self.answers)
        if kind < 0.6:
            return self._altered(rng)
        return " ".join(rng.choices(self.words, k=rng.randint(1, 8)))

    def _altered(self, rng: random.Random) -> str:
        while True:
            words = rng.choice(self.answers).split()
            text = " ".join(rng.choice(self._alike.get(word, [word])) for word in words)
            if not is_answer_held_out(text):
                return text


def speakers_of(texts: Texts, threads: int) -> dict[str, Speaker]:
    """Return for each voice a speaker of every word in each position of a question or answer."""
    domain, rng = Domain(), random.Random(1)
    asked = [
        phrase.format(**fact.slots)
        for intent, phrasings in PHRASINGS.items()
        for phrase in phrasings.trained + phrasings.held_out
        for fact in rng.sample(domain.facts[intent], min(12, len(domain.facts[intent])))
    ]
    words = [" ".join((word, word, word)) for word in texts.words]
    known = set(texts.words)
    sentences = [one for one in (*domain.answers(), *asked, *words) if known >= set(one.split())]
    return {name: Speaker(sentences, threads, Voice("flite", voice)) for name, voice in VOICES.items()}


@dataclass(frozen=True, slots=True)
class NaturalSpeaker:
    """A speaker of whole sentences in a natural voice."""

    engine: Hibari
    voice: Voice

    def say(self, sentence: str) -> Answer:
        """Return the sound of a sentence, and the start of each word.

        Raises:
            ValueError: the engine cannot speak the sentence, or cannot report when its words start.
        """
        one = spoken(self.engine, Turn("words", sentence, "", False), self.voice)
        if not one.starts_s:
            raise ValueError(f"it is not known when the words of {sentence!r} start")
        return Answer(tuple(sentence.split()), one.starts_s, one.pcm)


Reader = Speaker | NaturalSpeaker


def natural_speakers(material: Material) -> dict[str, Reader]:
    """Return for each natural voice its speaker."""
    engine = Hibari(material.hibari)
    return {name: NaturalSpeaker(engine, voice) for name, voice in NATURAL_VOICES.items()}


def record(rng: random.Random, texts: Texts, speakers: Mapping[str, Reader], *, is_long: bool) -> Recording:
    """Speak a sentence in one voice, or with ``is_long`` several sentences with pauses and breaks between
    them."""
    voice = rng.choice(tuple(speakers))
    recording, speaker = Recording.empty(voice), speakers[voice]
    while not recording.parts or (is_long and recording.frames < LONG_FRAMES):
        if recording.parts:
            _pause(rng, recording)
        if rng.random() < 0.05:
            recording.add(_silence(UNKNOWN_FRAMES), UNKNOWN_WORD)
        answer = speaker.say(texts.sentence(rng))
        if isinstance(speaker, NaturalSpeaker):
            recording.add_sentence(answer)
        else:
            for word, pcm in zip(answer.words, words_in_frames(answer), strict=True):
                recording.add(pcm, word)
    return recording


def _pause(rng: random.Random, recording: Recording) -> None:
    """Continue at once, after a breath, or after a break in the text."""
    kind = rng.random()
    if 0.3 <= kind < 0.7:
        recording.add(_silence(rng.randint(1, 4)))
    elif kind >= 0.7:
        frames = rng.randint(4, 25)
        recording.add(_silence(frames), _break(frames))


def _break(frames: int) -> str:
    return f'<break time="{frames * FRAME_SAMPLES / SAMPLE_RATE:.2f}s"/>'


def read(recordings: Sequence[Recording], mimi: Any) -> Iterator[Reading]:
    """Encode recordings in their order, ten at a time; those of similar length should be neighbours."""
    for first in range(0, len(recordings), 10):
        batch = recordings[first : first + 10]
        frames = [LEAD_FRAMES + one.frames + TAIL_FRAMES for one in batch]
        pcm = np.zeros((len(batch), (COLD_FRAMES + max(frames)) * FRAME_SAMPLES), np.float32)
        for row, one in enumerate(batch):
            sound, at = np.concatenate(one.pcm), (COLD_FRAMES + LEAD_FRAMES) * FRAME_SAMPLES
            pcm[row, at : at + sound.size] = sound
        for one, count, codes in zip(batch, frames, encode(mimi, pcm), strict=True):
            starts = tuple(LEAD_FRAMES + start for start in (*one.starts, one.frames))
            kept = codes[:, COLD_FRAMES : COLD_FRAMES + count]
            yield Reading(kept, " ".join(one.parts), starts, one.voice)


def make_shard(
    path: Path,
    seed: int,
    texts: Texts,
    speakers: Mapping[str, Reader],
    mimi: Any,
    *,
    short: int = SHORT_PER_SHARD,
) -> float:
    """Write one shard with ``short`` short readings and a fifth as many long ones; returns their length in
    seconds."""
    rng = random.Random(f"readings-{seed}")
    kinds = [False] * short + [True] * (short // LONG_SHARE)
    recordings = [record(rng, texts, speakers, is_long=is_long) for is_long in kinds]
    recordings.sort(key=lambda one: one.frames)
    readings = list(read(recordings, mimi))
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        codes=np.concatenate([one.codes for one in readings], axis=1),
        ends=np.cumsum([one.codes.shape[1] for one in readings]),
        texts=np.array([one.text for one in readings]),
        voices=np.array([one.voice for one in readings]),
        starts=np.concatenate([one.starts for one in readings]),
        counts=np.array([len(one.starts) for one in readings]),
    )
    part.replace(path)
    return sum(one.frames for one in recordings) * FRAME_SAMPLES / SAMPLE_RATE


def read_readings(path: Path) -> list[Reading]:
    """Return the readings of a shard."""
    with np.load(path) as shard:
        codes = np.split(shard["codes"], shard["ends"][:-1], axis=1)
        starts = np.split(shard["starts"], np.cumsum(shard["counts"])[:-1])
        texts, voices = (list(map(str, shard[name])) for name in ("texts", "voices"))
    return [
        Reading(some, text, tuple(map(int, when)), voice)
        for some, text, when, voice in zip(codes, texts, starts, voices, strict=True)
    ]


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=8, help="some 25 minutes of speech each")
    parser.add_argument(
        "--readings", type=int, default=SHORT_PER_SHARD, help="short readings of a shard [%(default)s]"
    )
    parser.add_argument("--answers", type=int, help="number of first answers, read whole and as words [all]")
    parser.add_argument("--natural", type=Path, help="folder of lab.train.material: hibari reads, not flite")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    paths = [options.out / f"{seed:04d}.npz" for seed in range(options.shards)]
    if all(path.exists() for path in paths):
        return 0
    texts = Texts(options.answers)
    speakers: Mapping[str, Reader] = (
        natural_speakers(Material(options.natural))
        if options.natural
        else speakers_of(texts, options.threads)
    )
    mimi = load_mimi(options.codec)
    mimi.eval()
    start_s = time.monotonic()
    for seed, path in enumerate(paths):
        if not path.exists():
            seconds = make_shard(path, seed, texts, speakers, mimi, short=options.readings)
            sys.stderr.write(f"{path.name}: {seconds:.0f} s of speech, {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

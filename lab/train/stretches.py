"""Encodes twenty seconds of a caller as received by the server: turns, silences, a room, a line.

Usage: python -m lab.train.stretches --questions out/train/natural --codec out/built-in/tiny \\
           --copies 3 --out out/train/stretches

lab.train.segments encodes single questions and composes their codes; this module composes a whole stretch of
sound and encodes it from the codec's first frame on. A recogniser's input then includes speech that begins
with the audio, speech without a pause for 20 s, and pauses of exact zeros in a room of -80 to -40 dBFS. The
utterances are questions with known word starts, and speech outside the domain. A copy of a shard has the same
utterances in other stretches and throats, at a tenth of the cost of speaking new ones. Existing shards are
kept. Two processes share the work with --part 0/2 and --part 1/2.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from antiphon.arrays import FloatArray
from lab.train.augment import SAMPLE_RATE, coloured_noise, equalise
from lab.train.codec import load_mimi
from lab.train.natural import LOUDNESS
from lab.train.outside import WORDLESS
from lab.train.passages import DELAY_FRAMES, FRAME_RATE, Passage, pause_labels, text_stream
from lab.train.questions import Utterance, audible, read_shard
from lab.train.segments import EQUALISED, FRAME_SAMPLES, CodeArray, encode
from lab.train.shards import copies_of
from lab.train.surroundings import LINES, Surroundings
from lab.train.talker_tokenizer import TalkerTokenizer
from lab.train.throats import Throat

FRAMES: Final = 250
"""Frames of a stretch: 20 s."""
BEGINS_AT_ONCE: Final = 0.3
"""Share of the stretches that begin with speech in the first sample."""
WITHOUT_PAUSES: Final = 0.15
LONGEST_SILENCE_S: Final = 3.0
GAPS_S: Final = ((0.0, 0.4), (0.4, 2.0), (2.0, LONGEST_SILENCE_S))
GAP_SHARES: Final = (0.5, 0.3, 0.2)
HESITATES: Final = 0.15
"""Share of the turns of at least four words with a silence before one of their words."""
APART: Final = 0.2
"""Share of the turns of several words whose words are cut apart, as when numbers are read out."""
APART_S: Final = (0.05, 0.5)
BENT: Final = 0.5
"""Share of the utterances that another throat says."""
IS_QUIET: Final = 0.5
"""Share of the stretches with only the room's faint noise; others also have a noise, a room or a line."""
NARROW: Final = 0.3
"""Share of the quiet stretches over a telephone or through a small microphone."""
ROOM_DB: Final = (-80.0, -40.0)
LEAST_SNR_DB: Final = 15.0
"""Least signal-to-noise ratio: a faint voice has a fainter room."""
ZEROED: Final = 0.5
"""Share of the stretches with silences of exact zeros, as with a muted microphone or missing packets."""
ZEROED_GAPS: Final = 0.7
SHORTEST_ZEROS_S: Final = 0.16


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch: codes int16 ``[8, FRAMES]``; the starts of its words and its ranges of speech are in frames.

    ``wordless`` is a part of ``speech``.
    """

    codes: CodeArray
    words: tuple[tuple[float, str], ...]
    speech: tuple[tuple[int, int], ...]
    wordless: tuple[tuple[int, int], ...]

    def passage(self, tokenizer: TalkerTokenizer) -> Passage:
        """Return the training data of a recogniser for this stretch."""
        is_wordless = np.zeros(self.codes.shape[1], np.bool_)
        for first, last in self.wordless:
            is_wordless[first + DELAY_FRAMES : last + DELAY_FRAMES] = True
        frames = self.codes.shape[1]
        return Passage(
            self.codes,
            text_stream(self.words, frames, tokenizer),
            pause_labels(self.speech, frames),
            is_wordless,
            list(self.words),
        )


@dataclass(slots=True)
class Composed:
    """A stretch while it is composed: its clean sound ``[samples]``; its words and its ranges of speech have
    positions in samples.

    ``silences`` are (first, end) of the silences before, between and within turns.
    """

    pcm: FloatArray
    words: list[tuple[int, str]]
    speech: list[tuple[int, int]]
    wordless: list[tuple[int, int]]
    silences: list[tuple[int, int]]
    at: int = 0

    @classmethod
    def empty(cls) -> Composed:
        """Return a silent stretch."""
        return cls(np.zeros(FRAMES * FRAME_SAMPLES, np.float32), [], [], [], [])

    def wait(self, seconds: float) -> None:
        """Append silence of ``seconds``."""
        end = min(self.pcm.size, self.at + int(seconds * SAMPLE_RATE))
        if end > self.at:
            self.silences.append((self.at, end))
        self.at = end

    def say(self, pcm: FloatArray, words: Sequence[tuple[int, str]], *, has_words: bool) -> None:
        """Append speech; ``words`` start at samples of ``pcm``. Speech beyond the end of the stretch is cut
        off."""
        end = min(self.pcm.size, self.at + pcm.size)
        if end == self.at:
            return
        self.pcm[self.at : end] = pcm[: end - self.at]
        self.words += [(self.at + start, word) for start, word in words if self.at + start < end]
        self.speech.append((self.at, end))
        if not has_words:
            self.wordless.append((self.at, end))
        self.at = end


def compose(rng: np.random.Generator, utterances: Sequence[Utterance]) -> Composed:
    """Draw turns and silences until the stretch is full."""
    made, has_pauses = Composed.empty(), rng.random() >= WITHOUT_PAUSES
    if rng.random() >= BEGINS_AT_ONCE:
        made.wait(float(rng.uniform(0, LONGEST_SILENCE_S)))
    while made.at < made.pcm.size:
        _take_a_turn(rng, made, utterances[int(rng.integers(len(utterances)))], may_pause=has_pauses)
        if has_pauses:
            made.wait(float(rng.uniform(*GAPS_S[int(rng.choice(len(GAPS_S), p=GAP_SHARES))])))
    return made


def _take_a_turn(rng: np.random.Generator, made: Composed, one: Utterance, *, may_pause: bool) -> None:
    """Append a turn, possibly with silences between its words."""
    pcm = one.pcm * np.float32(rng.uniform(0.7, 1.0))
    pcm = equalise(rng, pcm) if rng.random() < EQUALISED else pcm
    if one.turn.intent in WORDLESS:
        made.say(pcm, (), has_words=False)
        return
    starts = [int(start * SAMPLE_RATE) for start in one.starts_s]
    words = list(zip(starts, one.turn.question.split(), strict=True))
    if may_pause and len(words) > 1 and rng.random() < APART:
        _say_apart(rng, made, pcm, words)
        return
    cut = int(rng.integers(1, len(words))) if may_pause and len(words) > 3 and rng.random() < HESITATES else 0
    if cut:
        made.say(pcm[: starts[cut]], words[:cut], has_words=True)
        made.wait(float(rng.uniform(0.2, LONGEST_SILENCE_S)))
    at = starts[cut] if cut else 0
    made.say(pcm[at:], [(start - at, word) for start, word in words[cut:]], has_words=True)


def _say_apart(
    rng: np.random.Generator, made: Composed, pcm: FloatArray, words: Sequence[tuple[int, str]]
) -> None:
    for (start, word), end in zip(words, [*(start for start, _ in words[1:]), pcm.size], strict=True):
        part = pcm[start:end]
        made.say(part[audible(part)], [(0, word)], has_words=True)
        made.wait(float(rng.uniform(*APART_S)))


def in_another_throat(rng: np.random.Generator, one: Utterance) -> Utterance:
    """Return the utterance by another speaker at another pace, as loud as before; an utterance with a throat
    is unchanged."""
    if one.voice.throat is not None:
        return one
    throat = Throat.drawn(random.Random(int(rng.integers(1 << 32))))
    pcm = throat.bent(one.pcm, SAMPLE_RATE)
    pcm = pcm * np.float32(LOUDNESS / max(1e-6, float(np.sqrt(np.mean(pcm**2)))))
    starts = tuple(start * pcm.size / one.pcm.size for start in one.starts_s)
    return replace(one, voice=replace(one.voice, throat=throat), pcm=pcm.clip(-1, 1), starts_s=starts)


def heard(rng: np.random.Generator, made: Composed, utterances: Sequence[Utterance]) -> FloatArray:
    """Return the sound of a stretch after a microphone and a line, with the room's noise and zeros."""
    pcm = made.pcm
    loudness = _loudness(made, pcm)
    if rng.random() < IS_QUIET:
        if rng.random() < NARROW:
            pcm = LINES[("narrow", "telephone")[int(rng.integers(2))]](rng, pcm)
        pcm = pcm * np.float32(10 ** (rng.uniform(-30, 0) / 20))
    else:
        behind = utterances[int(rng.integers(len(utterances)))].pcm
        level = loudness / (float(np.sqrt(np.mean(behind**2))) + 1e-9)
        around = Surroundings.drawn(rng)
        pcm = around.heard(rng, pcm, loudness, np.resize(behind, pcm.size) * np.float32(level))
    room = coloured_noise(rng, pcm.size, float(rng.uniform(0, 2)))
    level = min(10 ** (rng.uniform(*ROOM_DB) / 20), _loudness(made, pcm) * 10 ** (-LEAST_SNR_DB / 20))
    pcm = pcm + room * np.float32(level)
    if rng.random() < ZEROED:
        for first, end in made.silences:
            if rng.random() < ZEROED_GAPS:
                pcm[_zeros_in(rng, first, end)] = 0
    return pcm.clip(-1, 1).astype(np.float32)


def _loudness(made: Composed, pcm: FloatArray) -> float:
    """Root mean square of a stretch's speech in ``pcm``."""
    return float(np.sqrt(np.mean(np.concatenate([pcm[first:end] for first, end in made.speech]) ** 2)))


def _zeros_in(rng: np.random.Generator, first: int, end: int) -> slice:
    """All of a silence or a part of it: the room's noise remains before it, after it or on both sides."""
    least = min(end - first, int(SHORTEST_ZEROS_S * SAMPLE_RATE))
    if rng.random() < 1 / 3:
        return slice(first, end)
    length = int(rng.integers(least, end - first + 1))
    at = first + int(rng.integers(0, end - first - length + 1))
    return slice(at, at + length)


def make_stretch(rng: np.random.Generator, utterances: Sequence[Utterance], mimi: Any) -> Stretch:
    """Compose and encode a stretch."""
    made = compose(rng, utterances)
    codes = encode(mimi, heard(rng, made, utterances)[None])[0]

    def frames(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        return tuple((first // FRAME_SAMPLES, (end - 1) // FRAME_SAMPLES) for first, end in spans)

    words = tuple((round(start / SAMPLE_RATE * FRAME_RATE, 2), word) for start, word in made.words)
    return Stretch(codes, words, frames(made.speech), frames(made.wordless))


def make_shard(path: Path, source: Path, seed: int, mimi: Any) -> int:
    """Write enough stretches to include each utterance of a shard about once; returns the number of
    stretches."""
    rng = np.random.default_rng((17, seed))
    read = [one for one in read_shard(source) if one.starts_s or one.turn.intent in WORDLESS]
    utterances = [in_another_throat(rng, one) if rng.random() < BENT else one for one in read]
    seconds = sum(one.pcm.size for one in utterances) / SAMPLE_RATE
    count = max(1, round(seconds / (FRAMES / FRAME_RATE) * 1.4))
    stretches = [make_stretch(rng, utterances, mimi) for _ in range(count)]
    told = [[one.words, one.speech, one.wordless] for one in stretches]
    part = path.with_suffix(".part.npz")
    np.savez(part, codes=np.stack([one.codes for one in stretches]), told=np.array(json.dumps(told)))
    part.replace(path)
    return count


def read_stretches(path: Path) -> list[Stretch]:
    """Return the stretches of a shard."""

    def pairs(some: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
        return tuple((first, last) for first, last in some)

    with np.load(path) as shard:
        return [
            Stretch(codes, tuple((start, word) for start, word in words), pairs(speech), pairs(wordless))
            for codes, (words, speech, wordless) in zip(
                shard["codes"], json.loads(str(shard["told"])), strict=True
            )
        ]


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, help="folder made by lab.train.natural")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=1, help="of each shard, all different [%(default)s]")
    parser.add_argument("--part", default="0/1", help="this process's share: I/N")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    share, shares = map(int, options.part.split("/"))
    options.out.mkdir(parents=True, exist_ok=True)
    mimi = load_mimi(options.codec)
    mimi.eval()
    start_s = time.monotonic()
    for seed, name, source in copies_of(options.questions, options.copies)[share::shares]:
        path = options.out / name
        if not path.exists():
            count = make_shard(path, source, seed, mimi)
            sys.stderr.write(f"{path.name}: {count} stretches, {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Finds when each word of the spoken questions begins: their synthesisers run once more, and report it.

Usage: python -m lab.train.word_times --questions out/train/questions --out out/train/word-times

Every synthesiser takes the same time for the same text, so no recognition is needed. Existing shards are
kept. Each shard names its utterances in the order in which lab.train.segments encodes them; for the copies of
a shard (--copies, as there) they are put into another order.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import sphn
from numpy.typing import NDArray

from lab.train.espeak import Espeak
from lab.train.outside import WORDLESS
from lab.train.questions import QUIET, Utterance, read_shard
from lab.train.rhvoice import SAMPLE_RATE as RHVOICE_RATE
from lab.train.rhvoice import RHVoice
from lab.train.segments import FRAME_SAMPLES, Segment, encoding_order
from lab.train.shards import COPY, copies_of
from lab.train.synthetic_voices import SAMPLE_RATE, Voice

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
TOLERANCE_S = 0.03
"""An utterance whose length differs by more than this in the second run is excluded."""

UNTIMED = ("freetts", "pico", "kokoro", "hibari", "recording")
"""Synthesisers that report no times; Kokoro and hibari reported them during synthesis if possible."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The length of an utterance, and the seconds from its first sample to each word; none if unknown."""

    seconds: float
    starts_s: tuple[float, ...]

    def starts_in(self, segment: Segment) -> tuple[float, ...]:
        """Return the starts of the words in frames of the segment with this utterance, exact to half a frame.

        A segment has the frames in which it begins and ends; the middle of the allowed range is used.
        """
        frames = self.seconds / FRAME_S
        first = max(segment.start, segment.end - frames)
        last = min(segment.start + 1, segment.end + 1 - frames)
        return tuple((first + last) / 2 + start_s / FRAME_S for start_s in self.starts_s)


@dataclass(slots=True)
class Listener:
    """A source of word times, which speaks utterances again and records when their words begin."""

    espeak: Espeak = field(default_factory=Espeak)
    rhvoice: RHVoice | None = None
    _counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def times(self, utterance: Utterance) -> Spoken:
        """Return the starts of an utterance's words in its sound; empty for speech outside the domain."""
        voice, text = utterance.voice, utterance.turn.question
        if utterance.starts_s:
            words = utterance.starts_s if utterance.turn.intent not in WORDLESS else ()
            return Spoken(utterance.pcm.size / SAMPLE_RATE, words)
        if utterance.turn.intent in WORDLESS or voice.program in UNTIMED:
            return Spoken(utterance.pcm.size / SAMPLE_RATE, ())
        say = {"espeak-ng": self._espeak, "rhvoice": self._rhvoice}.get(voice.program, self._by_phones)
        pcm, rate, starts_s = say(voice, text)
        level = np.abs(pcm if voice.throat is None else voice.throat.bent(pcm, rate))
        loud = np.flatnonzero(level > QUIET * level.max(initial=1e-6))
        if not loud.size:
            return Spoken(utterance.pcm.size / SAMPLE_RATE, ())
        slower = 1.0 if voice.throat is None else pcm.size and level.size / pcm.size
        first_s, seconds = loud[0] / rate, (loud[-1] + 1 - loud[0]) / rate * utterance.stretch
        true_s = utterance.pcm.size / SAMPLE_RATE
        if abs(seconds - true_s) > TOLERANCE_S:
            return Spoken(true_s, ())
        return Spoken(true_s, tuple(max(0.0, (s * slower - first_s) * utterance.stretch) for s in starts_s))

    def _espeak(self, voice: Voice, text: str) -> tuple[NDArray[np.float32], int, tuple[float, ...]]:
        pcm, starts = self.espeak.speak(voice, text)
        rate = self.espeak.sample_rate
        return pcm.astype(np.float32), rate, tuple(start / rate for start in starts)

    def _rhvoice(self, voice: Voice, text: str) -> tuple[NDArray[np.float32], int, tuple[float, ...]]:
        """The starts are empty if RHVoice joins or splits words."""
        self.rhvoice = self.rhvoice or RHVoice()
        pcm, starts = self.rhvoice.speak(voice, text)
        told = len(starts) == len(text.split())
        starts_s = tuple(start / RHVOICE_RATE for start in starts) if told else ()
        return pcm.astype(np.float32), RHVOICE_RATE, starts_s

    def _by_phones(self, voice: Voice, text: str) -> tuple[NDArray[np.float32], int, tuple[float, ...]]:
        counts = self._counts.setdefault(voice.name, {})
        for word in text.split():
            if word not in counts:
                with tempfile.TemporaryDirectory() as folder:
                    said = _phones(voice, word, Path(folder) / "word.wav")
                counts[word] = sum(phone != "pau" for phone, _ in said)
        with tempfile.TemporaryDirectory() as folder:
            wav = Path(folder) / "speech.wav"
            phones = _phones(voice, text, wav)
            pcm, rate = sphn.read(str(wav))
        return pcm[0], rate, starts_by_phones(tuple(text.split()), counts, phones)


def starts_by_phones(
    words: Sequence[str], counts: Mapping[str, int], phones: Sequence[tuple[str, float]]
) -> tuple[float, ...]:
    """Return when each word of a sentence starts: ``phones`` have their end times, ``counts`` the number of
    phones of each word.

    If the sentence has more or fewer phones than its separate words, they share them in proportion.
    """
    starts, previous_end = [], 0.0
    for phone, end in phones:
        if phone != "pau":
            starts.append(previous_end)
        previous_end = end
    before = np.cumsum([0] + [counts[word] for word in words[:-1]])
    total = sum(counts[word] for word in words)
    places = [min(len(starts) - 1, round(int(n) * len(starts) / total)) for n in before]
    return tuple(starts[place] for place in places)


def _phones(voice: Voice, text: str, wav: Path) -> list[tuple[str, float]]:
    """flite's or festival's phones and the time in seconds at which each ends; the sound is written to
    ``wav``."""
    if voice.program == "flite":
        command = [*voice.command(text, wav), "-psdur"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        pairs = (item.rsplit(":", 1) for item in said.split())
        return [(phone, float(end)) for phone, end in pairs]
    subprocess.run(voice.command(text, wav), check=True, capture_output=True)
    lines = wav.with_suffix(".phones").read_text().splitlines()[1:]  # the first is a mark
    columns = (line.split() for line in lines)
    return [(phone, float(end)) for end, _, phone in columns]


def as_encoded(spoken: Sequence[Spoken], seed: int) -> list[Spoken]:
    """Return the word times of a shard's utterances in the order of the segments that ``seed`` gives."""
    return [spoken[index] for scene in encoding_order(len(spoken), seed) for index in scene]


def as_spoken(times: Sequence[Spoken], seed: int) -> list[Spoken]:
    """Reverse :func:`as_encoded`: return ``times``, which are in the order that ``seed`` gives, in the order
    of the shard's utterances.
    """
    order = [index for scene in encoding_order(len(times), seed) for index in scene]
    return [one for _, one in sorted(zip(order, times, strict=True), key=lambda pair: pair[0])]


def write_word_times(path: Path, flat: Sequence[Spoken]) -> None:
    """Write the times of a shard's segments, in their order."""
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        seconds=np.array([one.seconds for one in flat], np.float32),
        counts=np.array([len(one.starts_s) for one in flat], np.int64),
        starts_s=np.array([start for one in flat for start in one.starts_s], np.float32),
    )
    part.replace(path)


def read_word_times(path: Path) -> list[Spoken]:
    """Return the times of a shard, one for each of its segments, in the order of the segments."""
    with np.load(path) as shard:
        starts = np.split(shard["starts_s"], np.cumsum(shard["counts"])[:-1])
        return [
            Spoken(float(seconds), tuple(map(float, some)))
            for seconds, some in zip(shard["seconds"], starts, strict=True)
        ]


def check_fit(segments: Sequence[Segment], times: Sequence[Spoken], path: Path) -> None:
    """Compare a shard's segments with the times at ``path``: number, lengths, word counts.

    Raises:
        ValueError: the times are of other segments, or of these in another order.
    """
    told = (
        f"{path}: made of other questions or in another order; remove it and run lab.train.word_times again"
    )
    if len(segments) != len(times):
        raise ValueError(f"{len(times)} times for {len(segments)} segments in {told}")
    for place, (segment, spoken) in enumerate(zip(segments, times, strict=True)):
        words, starts = len(segment.question.split()), len(spoken.starts_s)
        frames = segment.end - segment.start
        if abs(frames - spoken.seconds / FRAME_S) > 1.05 or starts not in (0, words):
            raise ValueError(
                f"segment {place} has {words} words in {frames} frames, its times {starts} words in "
                f"{spoken.seconds / FRAME_S:.1f} frames, in {told}"
            )


def starts_of(segments: Sequence[Segment], times: Sequence[Spoken]) -> list[tuple[float, ...]]:
    """Return each segment's word starts in frames of the segment; empty if they are unknown."""
    return [spoken.starts_in(segment) for segment, spoken in zip(segments, times, strict=True)]


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, help="folder made by lab.train.questions")
    parser.add_argument("--copies", type=int, default=1, help="of each shard [%(default)s]")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    listener, start_s, made = Listener(), time.monotonic(), 0
    for seed, name, source in copies_of(options.questions, options.copies):
        path, first = options.out / name, options.out / source.name
        if path.exists():
            continue
        if first.exists():
            spoken = as_spoken(read_word_times(first), seed % COPY)
        else:
            spoken = [listener.times(one) for one in read_shard(source)]
        write_word_times(path, as_encoded(spoken, seed))
        made += 1
        unknown = sum(not one.starts_s for one in spoken)
        sys.stderr.write(
            f"{name}: {unknown} without times; {made} shards in {time.monotonic() - start_s:.0f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

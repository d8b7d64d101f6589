"""Encode spoken questions, each in some noise, with the frozen codec; dialogues are composed of the codes.

Usage: python -m lab.train.segments --questions out/train/questions --codec out/train/codec \\
           --out out/train/segments

A copy of a shard (--copies) has the same questions in other surroundings, at a twentieth of the cost of new
ones. Held-out questions (--held-out) keep the colour of their voice, and have held-out surroundings. Existing
shards are kept. Two processes share the work with --part 0/2 and --part 1/2. Composing codes is valid because
the small codec looks back two seconds at most (its transformer's context is 25 frames).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon.arrays import FloatArray
from lab.train.augment import add_room, coloured_noise, equalise
from lab.train.codec import load_mimi
from lab.train.music import music
from lab.train.outside import INTENTS as OUTSIDE
from lab.train.questions import Utterance, read_shard
from lab.train.shards import copies_of
from lab.train.surroundings import Surroundings

FRAME_SAMPLES = 1920
LEAD_FRAMES, DROPPED_FRAMES = 6, 4
"""Frames of noise encoded before a question, and the number of them that is dropped with the codec's cold
start."""
TRAIL_FRAMES = 7
EQUALISED = 0.5
"""Share of the questions with a microphone or a mouth of another colour."""
GROUP = 10
"""Questions that share the kinds of noise, room and line, and their level; each draws its own noise of a
kind.

With 50, a shard had ten of these in all.
"""
STRIP_FRAMES = 100
PACED = 0.5
"""Share of training speech that is faster or slower, and the range of the factor."""
PACES = (0.85, 1.2)
QUIET_STRIPS, MUSIC_STRIPS = 8, 3
"""Numbers of strips of a shard; the last ones have music in them."""

CodeArray = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Segment:
    """A question as codes ``[8, frames]``, spoken in the frames ``start`` to ``end``, inclusive.

    Speech outside the domain has no words in ``question``.
    """

    codes: CodeArray
    start: int
    end: int
    question: str
    answer: str

    def paced(self, factor: float) -> Segment:
        """Return the segment ``factor`` times as long: frames are repeated or dropped."""
        frames = round(self.codes.shape[1] * factor)
        at = np.minimum(((np.arange(frames) + 0.5) / factor).astype(np.int64), self.codes.shape[1] - 1)
        return replace(
            self,
            codes=self.codes[:, at],
            start=round(self.start * factor),
            end=round((self.end + 1) * factor) - 1,
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of surroundings: ``strip`` has codes ``[8, STRIP_FRAMES]`` of the surroundings without speech;
    ``segments`` are the questions in them."""

    strip: CodeArray
    segments: tuple[Segment, ...]


def encode(mimi: Any, pcm: FloatArray) -> CodeArray:
    """Return the codes ``[B, 8, frames]`` of ``pcm``, float32 ``[B, samples]``.

    It processes one row at a time: ten together exceed the cache and take 1.8 times as long.
    """
    with torch.no_grad():
        rows = [mimi.encode(row[None, None]) for row in torch.from_numpy(pcm)]
    return np.asarray(torch.cat(rows).numpy(), dtype=np.int16)


def make_scene(
    rng: np.random.Generator, utterances: list[Utterance], mimi: Any, *, held_out: bool = False
) -> Scene:
    """Encode some questions in surroundings of one kind."""
    recoloured = 0.0 if held_out else EQUALISED
    around = Surroundings.drawn(rng, held_out=held_out)
    segments: list[Segment] = []
    for one in utterances:
        at = LEAD_FRAMES * FRAME_SAMPLES + int(rng.integers(FRAME_SAMPLES))
        start, end = at // FRAME_SAMPLES, (at + one.pcm.size) // FRAME_SAMPLES
        loudness = float(np.sqrt(np.mean(one.pcm**2)))
        heard: FloatArray = np.zeros((end + TRAIL_FRAMES) * FRAME_SAMPLES, np.float32)
        said = one.pcm * rng.uniform(0.7, 1.0)
        heard[at : at + one.pcm.size] = equalise(rng, said) if rng.random() < recoloured else said
        others = [other for other in utterances if other is not one] or [one]
        behind = others[rng.integers(len(others))].pcm
        heard = around.heard(rng, heard, loudness, _repeated(behind, heard.size, loudness))
        words = "" if one.turn.intent in OUTSIDE else one.turn.question
        codes = encode(mimi, heard[None])[0][:, DROPPED_FRAMES:]
        segments.append(Segment(codes, start - DROPPED_FRAMES, end - DROPPED_FRAMES, words, one.turn.answer))
    empty = np.zeros((STRIP_FRAMES + 10) * FRAME_SAMPLES, np.float32)
    strip = encode(mimi, around.heard(rng, empty, 0.1)[None])[0][:, 10:]
    return Scene(strip, tuple(segments))


def _repeated(pcm: FloatArray, samples: int, loudness: float) -> FloatArray:
    """``pcm`` repeated, ``[samples]``, at this loudness."""
    level = loudness / (float(np.sqrt(np.mean(pcm**2))) + 1e-9)
    return np.resize(pcm, samples) * np.float32(level)


def make_quiet(
    rng: np.random.Generator, utterances: list[Utterance], mimi: Any, *, held_out: bool = False
) -> CodeArray:
    """Return codes ``[QUIET_STRIPS, 8, STRIP_FRAMES]`` without speech for the model: noise, music, a
    crowd."""
    samples = (STRIP_FRAMES + 10) * FRAME_SAMPLES
    strips = []
    for index in range(QUIET_STRIPS):
        pcm = coloured_noise(rng, samples, rng.uniform(0, 2)) * 10 ** (rng.uniform(-60, -15) / 20)
        if index % 3 == 0:
            for _ in range(40):
                voice = utterances[rng.integers(len(utterances))].pcm
                at = int(rng.integers(samples - 1))
                pcm[at : at + voice.size] += voice[: samples - at] * rng.uniform(0.03, 0.12)
            pcm = add_room(rng, pcm)
        if index % 3 == 1:
            for _ in range(12):
                at, length = int(rng.integers(samples - 9600)), int(rng.integers(240, 9600))
                pcm[at : at + length] += coloured_noise(rng, length, rng.uniform(0, 1)) * rng.uniform(
                    0.02, 0.2
                )
        if index >= QUIET_STRIPS - MUSIC_STRIPS:
            pcm = pcm + music(rng, samples, held_out=held_out) * rng.uniform(0.05, 0.7)
        strips.append(pcm.clip(-1, 1).astype(np.float32))
    return encode(mimi, np.stack(strips))[:, :, 10:]


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng((11, seed))


def encoding_order(count: int, seed: int) -> list[list[int]]:
    """Return for each scene the indices of its utterances among the ``count`` utterances of a shard, in
    order."""
    order = [int(index) for index in _rng(seed).permutation(count)]
    return [order[first : first + GROUP] for first in range(0, count, GROUP)]


def make_shard(path: Path, source: Path, seed: int, mimi: Any, *, held_out: bool = False) -> None:
    """Encode one shard of questions; every ten questions share one scene (noise, room and line)."""
    utterances = read_shard(source)
    rng = _rng(seed)
    rng.permutation(len(utterances))  # uses up the draw of the order
    order = encoding_order(len(utterances), seed)
    scenes = [
        make_scene(rng, [utterances[index] for index in group], mimi, held_out=held_out) for group in order
    ]
    segments = [segment for scene in scenes for segment in scene.segments]
    told = [[s.start, s.end, s.question, s.answer] for s in segments]
    part = path.with_suffix(".part.npz")
    np.savez(
        part,
        codes=np.concatenate([segment.codes for segment in segments], axis=1),
        ends=np.cumsum([segment.codes.shape[1] for segment in segments]),
        sizes=np.array([len(scene.segments) for scene in scenes]),
        strips=np.stack([scene.strip for scene in scenes]),
        quiet=make_quiet(rng, utterances, mimi, held_out=held_out),
        told=np.array(json.dumps(told)),
    )
    part.replace(path)


def read_segments(path: Path) -> tuple[list[Scene], CodeArray]:
    """Return the scenes of a shard, and its strips without speech ``[N, 8, STRIP_FRAMES]``."""
    with np.load(path) as shard:
        told = json.loads(str(shard["told"]))
        parts = np.split(shard["codes"], shard["ends"][:-1], axis=1)
        segments: Iterator[Segment] = (Segment(codes, *one) for codes, one in zip(parts, told, strict=True))
        scenes = [
            Scene(strip, tuple(next(segments) for _ in range(size)))
            for strip, size in zip(shard["strips"], shard["sizes"], strict=True)
        ]
        return scenes, shard["quiet"]


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, help="folder made by lab.train.questions")
    parser.add_argument("--codec", type=Path, required=True, help="folder made by lab.train.codec")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--copies", type=int, default=1, help="of each shard, all different [%(default)s]")
    parser.add_argument("--held-out", action="store_true", help="no voice gets another colour")
    parser.add_argument("--part", default="0/1", help="this process's share: I/N")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    share, shares = map(int, options.part.split("/"))
    options.out.mkdir(parents=True, exist_ok=True)
    mimi = load_mimi(options.codec)
    mimi.eval()
    start_s, made = time.monotonic(), 0
    for seed, name, source in copies_of(options.questions, options.copies)[share::shares]:
        path = options.out / name
        if path.exists():
            continue
        make_shard(path, source, seed, mimi, held_out=options.held_out)
        made += 1
        sys.stderr.write(f"{path.name}: {made} shards in {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

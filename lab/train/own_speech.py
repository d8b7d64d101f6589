"""Synthesise the models' output in their own voices: shards for the codec's decoder.

Usage: python -m lab.train.own_speech --shards 4 --out out/train/own-speech

Half are the talker's answers, half the synthesiser's texts. Existing shards are kept.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from lab.train.answers import VOICE
from lab.train.readings import VOICES, Reader, Texts, record, speakers_of
from lab.train.segments import FRAME_SAMPLES
from lab.train.shards import write_speech
from lab.train.synthetic_voices import require_speakers

UTTERANCES_PER_SHARD: Final = 400
PAUSE_FRAMES: Final = (2, 12)
"""Frames of silence after an utterance."""


def utterance(rng: random.Random, texts: Texts, speakers: Mapping[str, Reader]) -> FloatArray:
    """Synthesise one answer or text, and a pause: float32 ``[samples]`` of whole frames."""
    if rng.random() < 0.5:
        talker = next(name for name, voice in VOICES.items() if voice == VOICE.name)
        said = speakers[talker].say(rng.choice(texts.answers)).pcm
    else:
        said = np.concatenate(record(rng, texts, speakers, is_long=False).pcm)
    return np.pad(said, (0, -said.size % FRAME_SAMPLES + rng.randint(*PAUSE_FRAMES) * FRAME_SAMPLES))


def make_shard(path: Path, seed: int, texts: Texts, speakers: Mapping[str, Reader], utterances: int) -> float:
    """Write one shard of utterances; returns their length in seconds."""
    rng = random.Random(f"own-{seed}")
    return write_speech(path, [utterance(rng, texts, speakers) for _ in range(utterances)])


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=4, help="about a quarter of an hour each [%(default)s]")
    parser.add_argument(
        "--utterances", type=int, default=UTTERANCES_PER_SHARD, help="of a shard [%(default)s]"
    )
    parser.add_argument(
        "--answers", type=int, help="number of first answers, spoken whole and as words [all]"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    require_speakers()
    options.out.mkdir(parents=True, exist_ok=True)
    texts = Texts(options.answers)
    speakers = speakers_of(texts, options.threads)
    start_s = time.monotonic()
    for seed in range(options.shards):
        path = options.out / f"{seed:04d}.npz"
        if not path.exists():
            seconds = make_shard(path, seed, texts, speakers, options.utterances)
            sys.stderr.write(f"{path.name}: {seconds:.0f} s of speech, {time.monotonic() - start_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

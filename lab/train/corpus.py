"""Make the codec's corpus: shards of single utterances, each made from its own seed.

Usage: python -m lab.train.corpus --shards 40 --out out/train/codec-speech

Existing shards are kept, so a stopped run is resumed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.train.sentences import draw_sentence
from lab.train.shards import write_speech
from lab.train.synthetic_voices import draw_voice, require_speakers, speak

UTTERANCES_PER_SHARD = 200


def make_shard(
    path: Path, seed: int, *, held_out: bool, threads: int, utterances: int = UTTERANCES_PER_SHARD
) -> float:
    """Write one shard of utterances; returns the length of its speech in seconds."""
    rng = random.Random(f"codec-{'test' if held_out else 'train'}-{seed}")
    plan = [
        (draw_voice(rng, held_out=held_out, foreign=not held_out and rng.random() < 0.15), draw_sentence(rng))
        for _ in range(utterances)
    ]
    with ThreadPoolExecutor(threads) as pool:
        spoken = list(pool.map(lambda item: speak(*item), plan))
    return write_speech(path, spoken)


def main(argv: list[str] | None = None) -> int:
    """Make the shards that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=40, help="about 13 minutes of speech each (default 40)")
    parser.add_argument(
        "--utterances", type=int, default=UTTERANCES_PER_SHARD, help="of a shard [%(default)s]"
    )
    parser.add_argument("--held-out", action="store_true", help="voices that training never hears")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    require_speakers()
    options.out.mkdir(parents=True, exist_ok=True)
    total_s, start_s = 0.0, time.monotonic()
    for seed in range(options.shards):
        path = options.out / f"{seed:04d}.npz"
        if path.exists():
            continue
        total_s += make_shard(
            path, seed, held_out=options.held_out, threads=options.threads, utterances=options.utterances
        )
        spent_s = time.monotonic() - start_s
        sys.stderr.write(
            f"shard {seed + 1}/{options.shards}: {total_s / 3600:.2f} h spoken in {spent_s:.0f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

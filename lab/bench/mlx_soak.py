"""Checks whether a session on mlx keeps its speed and its memory over ten thousand steps of a small model.

  python -m lab.bench.mlx_soak                           a seeded duplex model, 10,000 steps: 13 minutes of a
                                                     call, its windows filled hundreds of times
  python -m lab.bench.mlx_soak --steps 1000 --device cpu --kind codec
  python -m lab.bench.mlx_soak --model FOLDER --slots 4  a model of one's own, for its step times

Prints a line for each tenth, and fails if the last is slower than the second by more than a half, or uses
more memory. (The first tenth fills windows and caches.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import psutil

from antiphon.backends.base import Backend, StepInputs
from antiphon.backends.mlx.loading import make
from antiphon.models.catalog import load_checkpoint
from tests.support.make_checkpoint import make_checkpoint
from tests.support.small_models import KINDS

TENTHS = 10
SLOWER = 1.5
MORE_BYTES = 1 << 16
"""Bytes of temporary numbers between two steps; an array that leaked each time would be far more."""


@dataclass(frozen=True, slots=True)
class Tenth:
    """A tenth of the run: its median step, the memory that mlx holds, and the memory of the process."""

    steps: int
    step_ms: float
    held_bytes: int
    process_mb: float


def soak(backend: Backend, steps: int) -> Iterator[Tenth]:
    """Step every row of a backend, ``steps`` times in total, in one session without a reset; yields each
    tenth."""
    slots, process = backend.info.slots, psutil.Process()
    random, rows = np.random.default_rng(0), np.arange(slots, dtype=np.int32)
    pcm = random.normal(0, 0.1, (16, slots, backend.info.spec.frame_samples)).astype(np.float32)
    for tenth in range(TENTHS):
        times_ms = []
        for step in range(steps // TENTHS):
            began_s = time.perf_counter()
            is_first = np.full(slots, tenth + step == 0)
            backend.step(StepInputs(rows, is_first, pcm[step % 16]))
            times_ms.append(1000 * (time.perf_counter() - began_s))
        held, process_mb = mx.get_active_memory(), process.memory_info().rss / 1e6
        yield Tenth((tenth + 1) * (steps // TENTHS), float(np.median(times_ms)), held, process_mb)


def judge(second: Tenth, last: Tenth) -> list[str]:
    """Return a line for each value that grew from the second tenth to the last."""
    grown = []
    if last.step_ms > SLOWER * second.step_ms:
        grown.append(f"a step took {second.step_ms:.2f} ms and takes {last.step_ms:.2f}")
    if last.held_bytes > second.held_bytes + MORE_BYTES:
        grown.append(f"mlx held {second.held_bytes:,} bytes and holds {last.held_bytes:,}")
    return grown


def main(argv: list[str]) -> int:
    """Run the command line; returns the exit status: 1 if a value grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", metavar="FOLDER", help="a checkpoint, instead of a small seeded one")
    parser.add_argument(
        "--kind", choices=sorted(set(KINDS) - {"tts"}), default="moshi", help="of the small one"
    )
    parser.add_argument("--steps", type=int, default=10_000, help="[10000]")
    parser.add_argument("--slots", type=int, default=2, help="rows, all of them in every tick [2]")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="[the GPU where there is one]")
    parser.add_argument("--kv", choices=("compute", "int8"), default="compute", help="keys and values")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or str(make_checkpoint(Path(folder) / options.kind, kind=options.kind))
        backend = make(load_checkpoint(path), slots=options.slots, device=options.device, kv=options.kv)
    info = backend.info
    print(f"{info.spec.name} on {info.device}, {info.slots} rows, quantisation {info.quantization}")
    tenths: list[Tenth] = []
    for tenth in soak(backend, options.steps):
        tenths.append(tenth)
        print(
            f"{tenth.steps:6d} steps: {tenth.step_ms:7.2f} ms a step, mlx holds {tenth.held_bytes:,} bytes, "
            f"the process {tenth.process_mb:,.0f} MB",
            flush=True,
        )
    grown = judge(tenths[1], tenths[-1])
    print("; ".join(grown) or "nothing grew")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

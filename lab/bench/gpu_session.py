"""Runs the steps of a half-hour GPU session, the most useful first. Each is a process with a time limit; JSON
is written after each.

    python -m lab.bench.gpu_session --plan first                    # correctness, ticks, profile: 10 minutes
    python -m lab.bench.gpu_session --plan first --budget-s 540     # the end of the plan is left out
    python -m lab.bench.gpu_session --plan first --resume           # continue an interrupted session
    python -m lab.bench.gpu_session --plan kernels                  # the two big kernels in many forms
    python -m lab.bench.gpu_session --plan capacity                 # calls at real time: p99 of frame latency
    python -m lab.bench.gpu_session --plan server                   # 128 calls, the whole server, bfloat16
    python -m lab.bench.gpu_session --plan first --small            # shrunk models, on a CPU too: a minute
    python -m lab.bench.gpu_session --step ticks --batch 64         # one step, in this process

Run it from the folder of the repository. It needs torch, triton, numpy, safetensors, msgspec and
prometheus-client, no model files and no installation: weights are random and made on the GPU. Results are in
OUT/PLAN.json, other output of steps in OUT/PLAN.log. If "parity" finds a difference, the later steps are
marked: they have times, but should be checked again before any conclusion. A step whose rows do not fit into
the GPU's memory uses as many as fit; its result has their number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".", "server", "clients", "quantize")
LEAST_S = 15.0
"""Seconds; a step with less time left is skipped."""
SMALL_BATCH = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A step of a plan, which takes ``limit_s`` seconds at most."""

    step: str
    limit_s: float
    batch: int = 1
    model: str = "moshi-7b"
    bits: int = 8

    def words(self, *, is_small: bool) -> list[str]:
        """Return the step's command line as words; ``is_small`` reduces its rows to two."""
        batch = SMALL_BATCH if is_small else self.batch
        bits = [] if self.bits == 8 else ["--bits", str(self.bits)]
        named = ["--step", self.step, "--batch", str(batch), "--model", self.model]
        return [*named, *bits, *["--small"] * is_small]


PLANS: dict[str, tuple[Entry, ...]] = {  # the most valuable first, so that a cut costs least
    "first": (
        Entry("env", 60),
        Entry("compile_all", 110),
        Entry("parity", 90),
        Entry("ticks", 70),
        Entry("ticks", 80, 64),
        Entry("ticks", 90, 128),
        Entry("profile", 50),
        Entry("profile", 60, 64),
        Entry("kernels", 60),
        Entry("ticks", 60, 32),
        Entry("ticks", 70, 512, "stt-1b"),
    ),
    "kernels": (
        Entry("env", 60),
        Entry("nodes", 40),
        Entry("attention", 150),
        Entry("products", 150),
        Entry("mimi", 60),
    ),
    "capacity": (
        Entry("compile_all", 110),
        Entry("paced", 80, 64),
        Entry("paced", 80, 96),
        Entry("paced", 90, 128),
        Entry("upstream", 90),
        Entry("upstream", 90, 32),
    ),
    "server": (
        Entry("env", 40),
        Entry("compile_all", 70),
        Entry("parity", 70),
        Entry("ticks", 60, 64),
        Entry("paced", 90, 128),
        Entry("ticks", 80, 128),
        Entry("ticks", 40),
        Entry("served", 180, 128),
        Entry("delays", 50, 64),
        Entry("paced", 80, 64),
        Entry("ticks", 50, 32, bits=16),
        Entry("paced", 80, 32, bits=16),
    ),
}
STEPS = {
    "env": "gpu_checks:env",
    "compile_one": "gpu_checks:compile_one",
    "compile_all": "gpu_checks:compile_all",
    "parity": "gpu_parity:parity",
    "kernels": "gpu_checks:kernels",
    "ticks": "gpu_timings:ticks",
    "profile": "gpu_timings:profile",
    "delays": "gpu_delays:delays",
    "nodes": "gpu_timings:nodes",
    "mimi": "gpu_timings:mimi",
    "upstream": "gpu_timings:upstream",
    "attention": "gpu_sweeps:attention",
    "products": "gpu_sweeps:products",
    "paced": "gpu_paced:paced",
    "served": "gpu_served:served",
}
"""Module and function of each step; imported in the step's own process."""


def environment() -> dict[str, str]:
    """Return the environment of a step, in which Python finds the repository's sources first."""
    paths = [str(ROOT / folder) for folder in SOURCES] + os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def run_step(words: Sequence[str], limit_s: float, log: Path, out: Path) -> dict[str, Any]:
    """Run a step in a separate process group, which is ended when its time is over; its last line is the
    result."""
    command = [sys.executable, "-m", "lab.bench.gpu_session", *words, "--out", str(out)]
    start_s, error = time.monotonic(), None
    with log.open("a") as lines:
        lines.write(f"\n==== {' '.join(words)}\n")
        lines.flush()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=lines, text=True, start_new_session=True,
            cwd=ROOT, env=environment(),
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            error = f"not done after {limit_s:.0f} s"
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if error is None and process.returncode:
        error = f"exit code {process.returncode}"
    entry: dict[str, Any] = {"s": round(time.monotonic() - start_s, 1)}
    if error is None:
        return entry | {"result": found[-1]}
    return entry | {"error": error, "partial": found, "log": log.read_text()[-1500:]}


def parity_of(results: dict[str, Any]) -> str:
    """Return whether kernels and a CPU agree, by the step "parity": "same", "differs" or "unknown"."""
    found = next((one for words, one in results.items() if "--step parity" in words), None)
    if found is None or "result" not in found:
        return "unknown"
    return "same" if found["result"]["is_same"] else "differs"


def run_plan(options: argparse.Namespace) -> int:
    """Run every step of a plan; returns the number of failed ones."""
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    path, log = out / f"{options.plan}.json", out / f"{options.plan}.log"
    results: dict[str, Any] = {}
    if options.resume and path.is_file():
        results = {name: one for name, one in json.loads(path.read_text()).items() if "result" in one}
    end_s, plan = time.monotonic() + options.budget_s, PLANS[options.plan]
    for number, entry in enumerate(plan, 1):
        words = entry.words(is_small=options.small)
        name = " ".join(words)
        if name in results:
            continue
        left_s = end_s - time.monotonic()
        reason = "left out: no time left" if left_s < LEAST_S else None
        print(
            f"[{number}/{len(plan)}] {name}: {reason or f'{left_s:.0f} s left'}", file=sys.stderr, flush=True
        )
        if reason is None:
            results[name] = run_step(
                words, left_s - 5 if options.small else min(entry.limit_s, left_s - 5), log, out
            )
        else:
            results[name] = {"s": 0.0, "left_out": reason}
        results[name]["parity"] = parity_of(results)
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(results, indent=1) + "\n")
        unfinished.replace(path)
        print(json.dumps({name: results[name]}), flush=True)
    return sum("error" in one for one in results.values())


def run_here(options: argparse.Namespace) -> None:
    """Run one step in this process; its result is the last line of JSON."""
    os.environ.update(environment())  # for the step's own processes
    sys.path[:0] = [str(ROOT / folder) for folder in SOURCES]
    machine: Any = import_module("antiphon.backends.machine")
    with ExitStack() as stack:
        if not machine.detect_machine().has_cuda:
            os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
            os.environ.setdefault("OMP_NUM_THREADS", "1")
            interpreter: Any = import_module("tests.backends.torch.interpreter")
            stack.enter_context(interpreter.language_patched_once())
        _take(options)


def _take(options: argparse.Namespace) -> None:
    module, _, function = STEPS[options.step].partition(":")
    card: Any = import_module("lab.bench.gpu_card")
    options.out.mkdir(parents=True, exist_ok=True)
    task = card.Task(options.model, options.batch, options.small, options.out.resolve(), bits=options.bits)
    fitted = card.fitted(task)
    if fitted != task:
        print(f"{task.batch} rows do not fit into this card's memory, {fitted.batch} do", file=sys.stderr)
    card.note(getattr(import_module(f"lab.bench.{module}"), function)(fitted))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.gpu_session",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--plan", choices=PLANS)
    what.add_argument("--step", choices=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument(
        "--budget-s", type=float, default=580, help="seconds for a plan; default: %(default)s"
    )
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="keep the results that are in OUT/PLAN.json")
    parser.add_argument("--small", action="store_true", help="shrunk models, few turns, two rows at most")
    parser.add_argument("--batch", type=int, default=1, help="number of rows of a step")
    parser.add_argument("--model", default="moshi-7b", help="model of a step; default: %(default)s")
    parser.add_argument(
        "--bits",
        type=int,
        choices=(8, 16),
        default=8,
        help="of weights, keys and values; default: %(default)s",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit status."""
    options = arguments(argv)
    if options.plan:
        return 1 if run_plan(options) else 0
    run_here(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

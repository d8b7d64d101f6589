"""A table of every recipe of every target: what it does to a model's answers, size, memory and speed.

    python -m lab.bench.recipes --model tiny --out docs/benchmarks/recipes
    python -m lab.bench.recipes --model ./half-trained --questions 24 --out out/bench/recipes     quicker
    python -m lab.bench.recipes --speed-only --out docs/benchmarks/recipes-stt-1b   weights of stt-1b's size
    python -m lab.bench.recipes --only 'torch int*' ...                               a few of the rows

Each recipe is carried out by ``antiphon quantize`` in a process of its own, whose peak of memory is told.
What it made is held by the gate (docs/gate.md) to the model it was made of, on torch in float32; both are
timed by turns. The questions asked have to be there (docs/optimisation.md says how they are made). With
--speed-only models are timed and weighed, no more, beside bfloat16, which such a model is published in;
recipes that listen hear one clip, since the weights mean nothing. A row is saved when it is done, and the
same command goes on after it; rows that failed say why, and are tried again. Quantised models are not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from antiphon.backends.base import Backend, StepInputs
from antiphon.backends.registry import make_backend
from antiphon.errors import AntiphonError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import sha256
from antiphon_quantize.gate import judge, limits_of
from antiphon_quantize.gate_report import to_json
from antiphon_quantize.gate_run import Material, Side
from antiphon_quantize.gate_sound import built_in_clips
from antiphon_quantize.gate_speed import disk_bytes, memory_bytes
from antiphon_quantize.main import TARGETS
from antiphon_quantize.recipe import load_recipe, recipe_names
from lab.bench.harness import BenchError, Results, Values, tell, terminable, warn_if_busy
from lab.bench.pages import write_page
from lab.bench.published import STT_1B
from lab.bench.quantize_7b import measured, write_model
from lab.bench.recipes_report import render
from lab.bench.seeded_models import SMALL_LM
from tests.support.launch import ANTIPHON
from tests.support.small_models import mimi_config

WARM_UP_TICKS: Final = 3
ROW_S: Final = 20.0
"""No row is timed for longer: mlx's products of rounded weights are slow on a CPU."""
QUESTIONS_MADE_BY: Final = """They are made by

    python -m lab.train.questions --held-out --shards 4 --out out/train/questions-test
    python -m lab.train.segments --held-out --questions out/train/questions-test \\
        --codec FOLDER --out out/train/segments-test

where FOLDER is the model's, or another with its mimi.safetensors and mimi_config.json."""
SMALL_STT: Final[Mapping[str, Any]] = {**SMALL_LM, "n_q": 8, "delays": [0] * 9}
LISTENING: Final = ("awq", "gptq", "smoothquant", "smoothquant-static")
STT: Final[Mapping[str, Any]] = {
    "model_type": "stt",
    "stt_config": {"audio_delay_seconds": 0.5, "audio_silence_prefix_seconds": 1.0},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a recipe, or the model as it is (``recipe`` None), on a backend."""

    name: str
    target: str
    recipe: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how: the questions' folder may be None, and ``work`` is where models lie."""

    source: Checkpoint
    work: Path
    questions: Path | None
    most_questions: int
    rows: int
    turns: int
    speed_only: bool

    @property
    def baseline(self) -> Mapping[str, Any]:
        """The options of the model on torch that all others are held to."""
        return {"dtype": "bfloat16" if self.speed_only else "float32"}


def all_rows(*, speed_only: bool) -> Iterator[Row]:
    """The other float first, then every recipe of the package, then the models as they are elsewhere."""
    options = {"dtype": "bfloat16"} if speed_only else {}
    other = "float32" if speed_only else "bfloat16"
    yield Row(f"torch {other}", "torch", None, {"dtype": other})
    for target in TARGETS:
        if target == "mlx":
            yield Row("mlx float32", target)
        for recipe in recipe_names(target):
            yield Row(f"{target} {recipe}", target, recipe, options if target == "torch" else {})


def measure(plan: Plan, row: Row) -> Values:
    """Everything about one row."""
    out = plan.work / row.name.replace(" ", "-")
    shutil.rmtree(out, ignore_errors=True)
    try:
        made = quantized(plan, row, out) if row.recipe else {}
        candidate = load_checkpoint(str(out)) if row.recipe else plan.source
        found = timed(plan, row, candidate) if plan.speed_only else judged(plan, row, candidate)
        return {**made, **found}
    finally:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(out.with_name(f"{out.name}.part"), ignore_errors=True)


def quantized(plan: Plan, row: Row, out: Path) -> Values:
    """Carry the recipe out; what that took.

    Raises:
        BenchError: it could not be, with the tool's own last words.
    """
    assert row.recipe is not None
    line = [*ANTIPHON, "quantize", "--no-gate", "--target", row.target, "--recipe", row.recipe]
    recipe = load_recipe(row.target, row.recipe)
    if plan.speed_only and recipe.method in LISTENING:
        line += ["--calibration", str(built_in_clips()[0])]
    log = plan.work / "quantize.log"
    try:
        made = measured([*line, "--model", str(plan.source.root), str(out)], log)
    except BenchError as error:
        said = log.read_text(encoding="utf-8").strip().splitlines()
        raise BenchError(said[-1] if said else str(error)) from error
    told = made["said"].rpartition(f"{out.name}: ")[2]  # without the machine's own path
    return {"description": recipe.description, "quantize": {**made, "said": told}}


def judged(plan: Plan, row: Row, candidate: Checkpoint) -> Values:
    """The gate's verdict."""
    questions = None if row.target == "mlx" else plan.questions
    material = Material(
        questions=questions, most_questions=plan.most_questions, rows=plan.rows, turns=plan.turns
    )
    one = Side(plan.source, "torch", plan.baseline)
    other = Side(candidate, row.target, row.options)
    return {"gate": to_json(judge(one, other, limits_of(candidate, row.target), material, tell))}


def timed(plan: Plan, row: Row, candidate: Checkpoint) -> Values:
    """Both sides' size, memory and milliseconds a frame, by turns: ``baseline`` and ``candidate``."""
    sides = {
        "baseline": (plan.source, "torch", plan.baseline),
        "candidate": (candidate, row.target, row.options),
    }
    backends: dict[str, Backend] = {}
    found: Values = {}
    try:
        for name, (checkpoint, backend, options) in sides.items():
            tell(f"loading {checkpoint.spec.name} on {backend}")
            backends[name] = make_backend(backend, checkpoint, slots=1, device="cpu", options=options)
            found[name] = {
                "disk_bytes": disk_bytes(checkpoint, backend),
                "memory_bytes": memory_bytes(backends[name]),
            }
        for name, times in take_ticks(backends, plan.turns).items():
            found[name] |= times
    finally:
        for made in backends.values():
            made.close()
    return found


def take_ticks(backends: Mapping[str, Backend], turns: int) -> dict[str, Values]:
    """Median milliseconds of a tick, and of its language model, of each by turns; for ROW_S at most."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
    row, began_s = np.zeros(1, np.int32), time.perf_counter()
    sound = np.random.default_rng(0).standard_normal((1, 1920)).astype(np.float32) * np.float32(0.1)
    for turn in range(WARM_UP_TICKS + turns):
        for name, backend in backends.items():
            start_s = time.perf_counter()
            out = backend.step(StepInputs(row, np.array([turn == 0]), sound))
            took_ms = 1000 * (time.perf_counter() - start_s)
            if turn >= WARM_UP_TICKS:
                times[name].append((took_ms, out.stage_ms.get("lm", 0.0)))
        if turn > WARM_UP_TICKS and time.perf_counter() - began_s > ROW_S:
            break
    return {
        name: {
            "tick_ms": statistics.median(tick for tick, _ in own),
            "lm_ms": statistics.median(lm for _, lm in own),
            "turns": len(own),
        }
        for name, own in times.items()
    }


def held_out(folder: Path, most: int) -> Path | None:
    """Where the questions lie, None where none are to be asked.

    Raises:
        BenchError: there are none; with the commands that make them.
    """
    if most and not any(folder.glob("*.npz")):
        raise BenchError(f"{folder} holds no questions (*.npz); --questions 0 asks none. {QUESTIONS_MADE_BY}")
    return folder if most else None


def run(parts: Mapping[str, Callable[[], Values]], results: Results, clock: Callable[[], float]) -> None:
    """Measure what is not measured yet; whatever goes wrong with a part is its result."""
    attempts = results.values["attempts"]
    for name in [name for name, found in attempts.items() if "why" in found]:
        del attempts[name]
    left = [name for name in parts if name not in attempts]
    began_s = clock()
    for done, name in enumerate(left):
        took_s = clock() - began_s
        more = f", about {took_s / done * (len(left) - done) / 60:.0f} min left" if done else ""
        tell(f"== {done + 1}/{len(left)} {name}{more}")
        results.attempt(name, partial(_survived, name, parts[name]))


def _survived(name: str, part: Callable[[], Values]) -> Values:
    try:
        return part()
    except (AntiphonError, BenchError) as error:
        tell(f"{name} cannot be measured here: {error}")
        return {"why": str(error)}
    except Exception as error:  # the others are to be measured whatever is wrong with one
        tell(f"{name}: {type(error).__name__}: {error}")
        return {"why": f"{type(error).__name__}: {error}"}


def seeded(folder: Path, *, quick: bool) -> Checkpoint:
    """A model of stt-1b's size with seeded weights, written once."""
    if not folder.is_dir():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        config = SMALL_STT if quick else STT_1B
        write_model(part, config, mimi_config(card=config["card"]) if quick else None)
        path = part / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **STT}, indent=2))
        part.rename(folder)
    return load_checkpoint(str(folder))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0: a row that could not be measured says so in the table.

    Raises:
        BenchError: the questions to be asked are not there.
    """
    options = _parse(argv)
    questions = held_out(options.questions_from, 0 if options.speed_only else options.questions)
    warn_if_busy()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.model is not None:
        source = load_checkpoint(options.model)
    else:
        source = seeded(options.work / ("stt-small" if options.quick else "stt-1b"), quick=options.quick)
    plan = Plan(
        source=source,
        work=options.work,
        questions=questions,
        most_questions=options.questions,
        rows=options.rows,
        turns=options.turns,
        speed_only=options.speed_only,
    )
    settings = {
        "model": source.spec.name,
        "sha256": sha256(source.file("lm")),
        "speed_only": plan.speed_only,
        "questions": 0 if plan.questions is None else plan.most_questions,
        "turns": plan.turns,
    }
    results = Results(options.out.with_suffix(".json"), settings=settings, resume=True)
    rows = {row.name: partial(measure, plan, row) for row in all_rows(speed_only=plan.speed_only)}
    chosen = {name: part for name, part in rows.items() if fnmatchcase(name, options.only or "*")}
    run(chosen, results, time.monotonic)
    results.save()
    print(write_page(options.out.with_suffix(".md"), render(results.values)), end="")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", help="a built-in name or a folder; with --speed-only [seeded weights of stt-1b's size]")
    add("--out", type=Path, default=Path("out/bench/recipes"), help="with .json and .md [%(default)s]")
    add("--work", type=Path, default=Path("out/bench/recipe-models"), help="where models lie [%(default)s]")
    add("--questions", type=int, default=200, help="spoken questions asked, 0 for none [%(default)s]")
    add("--questions-from", type=Path, default=Path("out/train/segments-test"), help="[%(default)s]")
    add("--rows", type=int, default=32, help="of them side by side [%(default)s]")
    add("--turns", type=int, default=40, help="frames timed of each [%(default)s]")
    add("--only", metavar="PATTERN", help="rows whose name fits, 'torch int*' for instance")
    add("--speed-only", action="store_true", help="size, memory and speed, no quality")
    add("--quick", action="store_true", help="with --speed-only: a small model, to see that it works")
    options = parser.parse_args(argv)
    if options.model is None and not options.speed_only:
        parser.error("--model is needed, or --speed-only")
    return options


if __name__ == "__main__":
    with terminable("recipes"):
        sys.exit(main())

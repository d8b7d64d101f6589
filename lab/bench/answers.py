"""Measure how many spoken questions a talker still answers correctly after its weights are rounded.

    python -m lab.bench.answers out/built-in/tiny --backend mlx --questions out/train/segments-test
    python -m lab.bench.answers FOLDER --backend torch --form as-shipped --form int8 --questions ...

A form is the unchanged model, or the result of `antiphon quantize` for this backend with a recipe. All forms
get the same held-out questions as the same codes, many at once and as fast as the machine can, and answer
greedily; an answer is correct if every word is. As shipped, on onnx, means the graphs of the model; a model
without graphs needs --form float32 and so on. This is a server's language model without the audio paths:
`python -m lab.train.evaluate` asks through the WebSocket, in real time, with noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from antiphon.models.catalog import load_checkpoint
from antiphon_quantize import main as quantize
from antiphon_quantize.gate_run import open_eval_model
from antiphon_quantize.gate_subject import read_questions
from lab.bench.harness import BenchError, Results, Values, machine_line, tell, terminable, warn_if_busy
from lab.bench.pages import write_page

AS_SHIPPED: Final = "as-shipped"
FORMS: Final = {
    "mlx": (AS_SHIPPED, "q8", "q4"),
    "torch": (AS_SHIPPED, "int8", "int4"),
    "onnx": (AS_SHIPPED, "float32", "int8", "int4"),
}
OPTIONS: Final = {"mlx": {"dtype": "float32"}}
"""mlx computes in float32 on a CPU, where it multiplies matrices of a few bits seven times as fast as in
bfloat16."""
Z_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run; a resumed run must have the same."""

    model: str
    backend: str
    forms: tuple[str, ...]
    questions: str
    most: int = 200
    rows: int = 25
    processes: int = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, then write JSON and text."""
    options = _parse(argv)
    settings = Settings(
        options.model,
        options.backend,
        tuple(options.form or FORMS[options.backend]),
        str(options.questions),
        options.most,
        options.rows,
        options.processes,
    )
    name = f"{settings.backend}-answers"
    results = Results(options.out / f"{name}.json", settings=asdict(settings), resume=options.resume)
    with terminable("lab.bench.answers"):
        run(results, settings)
    write_page(options.out / f"{name}.md", render(results.values))
    tell(f"written: {options.out}/{name}.json and .md")
    return 0


def run(results: Results, settings: Settings) -> None:
    """Measure every form, and save each result at once."""
    warn_if_busy()
    for form in settings.forms:
        with tempfile.TemporaryDirectory() as scratch:
            found = results.attempt(form, partial(ask, settings, form, Path(scratch) / form))
        tell(f"{form}: {sum(found['right'])} of {len(found['right'])} in {found['seconds']:.0f} s")
    results.save()


def ask(settings: Settings, form: str, scratch: Path) -> Values:
    """Measure one form: whether each question is answered correctly, and the size of the form."""
    model = settings.model
    if form != AS_SHIPPED:
        model = str(scratch)
        with redirect_stdout(sys.stderr):
            quantize.main(
                [
                    *("--target", settings.backend, "--recipe", form),
                    "--no-gate",
                    "--model",
                    settings.model,
                    model,
                ]
            )
    began_s, parts = time.monotonic(), settings.processes
    with ProcessPoolExecutor(parts, mp_context=get_context("spawn")) as pool:
        marks = list(pool.map(mark_part, [settings] * parts, [model] * parts, range(parts)))
    right = [False] * sum(len(one) for one, _ in marks)
    for part, (one, _) in enumerate(marks):
        right[part::parts] = one
    return {"right": right, "seconds": round(time.monotonic() - began_s, 1), **marks[0][1]}


def mark_part(settings: Settings, model: str, part: int) -> tuple[list[bool], Values]:
    """Ask a part of the questions (in a separate process); returns whether each is answered correctly, and
    the model's facts.

    Raises:
        BenchError: the model has no language model, or no tokenizer.
    """
    checkpoint = load_checkpoint(model)
    tokenizer, lm = checkpoint.text_tokenizer(), checkpoint.spec.lm
    if tokenizer is None or lm is None:
        raise BenchError(f"{model} answers no questions")
    questions = read_questions(Path(settings.questions), lm, tokenizer, settings.most)
    options = OPTIONS.get(settings.backend, {})
    judged = open_eval_model(checkpoint, settings.backend, rows=settings.rows, options=options)
    info = judged.backend.info
    facts = {
        "dtype": info.dtype,
        "quantization": info.quantization,
        "weights_bytes": info.memory["weights"],
        "versions": dict(info.versions),
    }
    right = questions.part(part, settings.processes).right(judged)
    judged.backend.close()
    return right, facts


def interval(right: int, asked: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of the share ``right / asked``, after Wilson (1927)."""
    share, spread = right / asked, Z_95**2 / asked
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / asked + spread / asked / 4)
    return middle - half, middle + half


def render(values: Values) -> str:
    """Return the result as text."""
    settings, attempts = values["settings"], values["attempts"]
    first = next(iter(attempts.values()))["right"]
    lines = [
        f"# Answers on {settings['backend']}",
        "",
        f"`{values['command']}`, {values['started_at']}, on {machine_line(values)}.",
        "",
        f"{len(first)} held-out spoken questions to `{Path(settings['model']).name}`, the same codes for "
        "every form, answered greedily; an answer is right when every word is. Lost and won are counted "
        "question by question, next to the first form. Only the language model is rounded; the codec neither "
        "hears nor speaks here.",
        "",
        "| form | computed in | weights, MB | right | share | 95 % interval | lost | won |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for form, found in attempts.items():
        right = found["right"]
        low, high = interval(sum(right), len(right))
        lost = sum(was and not now for was, now in zip(first, right, strict=True))
        won = sum(now and not was for was, now in zip(first, right, strict=True))
        lines.append(
            f"| {form} | {found['dtype']}, {found['quantization']} | {found['weights_bytes'] / 1e6:.1f} "
            f"| {sum(right)} | {sum(right) / len(right):.1%} | {low:.1%} to {high:.1%} | {lost} | {won} |"
        )
    return "\n".join(lines) + "\n"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="lab.bench.answers", description=summary)
    parser.add_argument("model", help="a built-in name or a folder, not rounded yet")
    parser.add_argument("--backend", choices=FORMS, default="mlx", help="[%(default)s]")
    parser.add_argument(
        "--form", action="append", help=f"{AS_SHIPPED}, or a recipe's name; repeat [by backend]"
    )
    parser.add_argument("--questions", type=Path, required=True, help="held-out folder of lab.train.segments")
    parser.add_argument("--most", type=int, default=200, help="the largest number of questions [%(default)s]")
    parser.add_argument("--rows", type=int, default=25, help="questions at once [%(default)s]")
    parser.add_argument("--processes", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--resume", action="store_true", help="keep what an interrupted run found")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())

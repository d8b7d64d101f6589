"""``antiphon gate A B``: checks that the model B keeps the quality of A within limits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from antiphon.backends.registry import AUTO, BACKENDS, options_of, resolve_auto
from antiphon.errors import DegradedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.folder import Approve
from antiphon_quantize.gate_limits import (
    Limit,
    Verdict,
    common_limits,
    judge_measures,
    parse_limit,
    read_limits_file,
    render,
    slower,
    to_json,
)
from antiphon_quantize.gate_run import Material, Note, Observer, Side
from antiphon_quantize.gate_subject import why_not
from antiphon_quantize.recipe import Recipe, load_recipe, recipe_names

EXAMPLES = """\
examples:
  antiphon gate ./moshiko ./moshiko-int8
  antiphon gate ./stt-1b ./stt-1b-onnx --backend-a torch --backend-b onnx --audio speech/*.wav
  antiphon gate tiny ./mine --limit 'text kl<=0.01' --limit '* agreement>=0.98' --json verdict.json
  antiphon gate ./tiny ./tiny-int8 --questions ./held-out
  antiphon gate ./moshiko ./moshiko --backend torch --backend-option-b kv=int4

A is the baseline, B the candidate. The limits come from B's recipe; --limit overrides them. The exit code
is 1 if a limit is missed.
"""


def judge(
    baseline: Side,
    candidate: Side,
    limits: Sequence[Limit],
    material: Material,
    note: Note = lambda _: None,
) -> Verdict:
    """Compare a candidate with a baseline; the first limit that matches a measure applies.

    Raises:
        AntiphonError: the two cannot be compared, or cannot be run.
    """
    observer = Observer(baseline, candidate, material, note)
    rows = judge_measures(observer.measures(), limits)
    return Verdict(baseline.name, candidate.name, observer.description, rows)


def limits_of(checkpoint: Checkpoint, backend: str) -> tuple[Limit, ...]:
    """The limits of a checkpoint's recipe, if the recipe is part of this project, and the common limits."""
    quantization = checkpoint.quantization_for(backend)
    name = "" if quantization is None else str(quantization.options.get("recipe", ""))
    own = load_recipe(backend, name).gate if name in recipe_names(backend) else ()
    return (*own, *common_limits())


def make_check(
    baseline: Checkpoint, target: str, recipe: Recipe, *, questions: Path | None, accepts: bool
) -> Approve:
    """A function that checks a checkpoint made from ``baseline`` and prints a report; with ``accepts`` any
    verdict passes.

    It raises DegradedError for a checkpoint that exceeds a limit. A measure without a value is reported as
    "not measured" and exceeds no limit.
    """

    def approve(candidate: Checkpoint) -> None:
        reason = why_not(candidate.spec, target)
        if reason is not None:
            _tell(f"not judged: {reason}")
            return
        limits = (*recipe.gate, *common_limits())
        material = Material(questions=questions)
        own = "mlx" if target == "mlx" else "torch"  # an mlx machine may lack torch
        verdict = judge(Side(baseline, own), Side(candidate, target), limits, material, _tell)
        _tell(render(verdict))
        warning = slower(verdict)
        if warning is not None:
            _tell(warning)
        if not verdict.passed and not accepts:
            raise DegradedError(
                f"{verdict.summary}; nothing was written (--accept-degradation writes it anyway)"
            )

    return approve


def main(argv: Sequence[str]) -> int:
    """Run the command line; return 1 if the candidate misses a limit.

    Raises:
        AntiphonError: the two cannot be compared, or cannot be run.
    """
    options = _parse(argv)
    sides: list[Side] = []
    for model, asked, own in (
        (options.a, options.backend_a, []),
        (options.b, options.backend_b, options.backend_option_b),
    ):
        checkpoint, backend = load_checkpoint(model), asked or options.backend
        backend = resolve_auto(checkpoint) if backend == AUTO else backend
        sides.append(Side(checkpoint, backend, options_of(backend, [*options.backend_option, *own])))
    one, other = sides
    limits = [parse_limit(text) for text in options.limit]
    limits += (
        read_limits_file(options.limits) if options.limits else limits_of(other.checkpoint, other.backend)
    )
    material = Material(
        recordings=options.audio,
        frames=options.frames,
        questions=options.questions,
        most_questions=options.most_questions,
        rows=options.rows,
        turns=options.turns,
        device=options.device,
    )
    verdict = judge(one, other, limits, material, _tell)
    print(render(verdict))  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps(to_json(verdict), indent=2) + "\n", encoding="utf-8")
    return 0 if verdict.passed else 1


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="antiphon gate",
        description="Compare a model with a baseline: logits, sound, answers, speed and size.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add: Callable[..., Any] = parser.add_argument
    add("a", metavar="A", help="the baseline: a built-in name, a folder, or hf://owner/repo[@revision]")
    add("b", metavar="B", help="the candidate")
    names = [AUTO, *BACKENDS]
    add("--backend", choices=names, default=AUTO, help="the backend of both models [%(default)s]")
    add("--backend-a", choices=names, help="the backend of A")
    add("--backend-b", choices=names, help="the backend of B")
    add(
        "--backend-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of both backends",
    )
    add(
        "--backend-option-b",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of B's backend",
    )
    add("--device", help="device of both backends")
    add("--audio", nargs="+", type=Path, default=[], metavar="FILE", help="recorded speech [built-in clips]")
    add(
        "--frames",
        type=int,
        default=100,
        metavar="N",
        help="frames of each recording, with the silence after it [%(default)s]",
    )
    add("--questions", type=Path, metavar="FOLDER", help="spoken questions with their answers (docs/gate.md)")
    add(
        "--most-questions",
        type=int,
        default=200,
        metavar="N",
        help="the largest number of questions [%(default)s]",
    )
    add(
        "--rows",
        type=int,
        default=1,
        metavar="N",
        help="questions at once; at least the number of recordings [%(default)s]",
    )
    add("--turns", type=int, default=40, metavar="N", help="timed steps of each model [%(default)s]")
    add(
        "--limit",
        action="append",
        default=[],
        metavar="'MEASURE<=X'",
        help="a limit with <= or >=; * is a wildcard",
    )
    add("--limits", type=Path, metavar="FILE", help="limits in TOML [the limits of B's recipe]")
    add("--json", type=Path, metavar="FILE", help="write the verdict as JSON")
    return parser.parse_args(list(argv))

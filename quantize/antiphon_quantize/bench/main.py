"""``antiphon bench``: the benchmark card of models on this machine, and ``antiphon bench slots``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from antiphon.errors import ConfigError
from antiphon.option import Parser
from antiphon_quantize.bench import slots
from antiphon_quantize.bench.options import (
    QualitySource,
    add_models_options,
    add_plan_options,
    add_quality_options,
    chosen_entries,
    make_subjects,
    plan_of,
    run_gate,
)
from antiphon_quantize.bench.output import can_draw, free_place, summary, tell, write_card
from antiphon_quantize.bench.player import FarPlayer, no_progress
from antiphon_quantize.bench.run import run
from antiphon_quantize.bench.subject import Subject

EXAMPLES = """\
examples:
  antiphon bench                                          the default model: out/card.md, .json and .png
  antiphon bench --model ./moshiko-int8 --model ./moshiko --baseline ./moshiko --rows 1,2,4,8
  antiphon bench --config models.toml --seconds 60        the models of antiphon serve --config
  antiphon bench --model ./a --model ./b --baseline ./b --quality gate.json
  antiphon bench slots --model ./moshiko-int8 antiphon.toml

Several models are measured alternately (A B A B ...), so that other load on the machine affects all of
them: compare ratios rather than milliseconds. Each model runs in a separate process, for its peak memory.
To find the number of slots: antiphon bench slots --help.
"""


def main(argv: Sequence[str]) -> int:
    """Measure and write the card; returns the exit code, 1 if the quality gate failed a model.

    Raises:
        AntiphonError: an invalid option, or a model that cannot be run.
    """
    if argv and argv[0] == "slots":
        return slots.main(argv[1:])
    options = _parse(argv)
    plan = plan_of(options)
    subjects, baseline = choose(options)
    judge = partial(run_gate, questions=options.questions, tell=tell)
    source = QualitySource(baseline, subjects, options.quality, judge)
    out = free_place(Path(options.out))
    has_figure = not options.no_figure and can_draw()
    card = run(
        [(subject.label, partial(FarPlayer, subject, plan, no_progress)) for subject in subjects],
        plan,
        baseline=None if baseline is None else baseline.label,
        quality=source.quality,
        command=shlex.join(["antiphon", "bench", *argv]),
        now=datetime.now(UTC),
        tell=tell,
    )
    paths = write_card(card, out, has_figure=has_figure)
    print(f"{summary(card)}\n\n" + "\n".join(map(str, paths)))  # noqa: T201
    return int(any(entry.quality is not None and entry.quality.is_passed is False for entry in card.entries))


def choose(options: argparse.Namespace) -> tuple[list[Subject], Subject | None]:
    """The models to measure, and the baseline, which is one of them, or None.

    Raises:
        ConfigError: the baseline is not one of the models. AntiphonError: a model is missing, or no installed
        backend runs it.
    """
    entries = chosen_entries(options)
    subjects = make_subjects(entries)
    if options.baseline is None:
        return subjects, None
    for entry, subject in zip(entries, subjects, strict=True):
        if options.baseline in (entry.model, subject.label):
            return subjects, subject
    told = ", ".join(subject.label for subject in subjects)
    raise ConfigError(f"baseline '{options.baseline}' is none of the models measured: {told}")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="antiphon bench",
        description="Measure models as they run here: tick times, throughput, memory, quality.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_models_options(parser)
    add_quality_options(parser, baseline="the model that the others are compared with")
    parser.add_argument(
        "--quality",
        action="append",
        default=[],
        metavar="FILE",
        help="JSON of antiphon gate, one file for each model except the baseline, in order; "
        "without it the gate is run",
    )
    add_plan_options(parser, seconds=10.0, rows="1,2,4")
    parser.add_argument(
        "--out",
        default="out/card",
        metavar="FILE",
        help="file name of the card, without a suffix; an existing name gets a number [out/card]",
    )
    parser.add_argument("--no-figure", action="store_true", help="write no PNG")
    return parser.parse_args(list(argv))

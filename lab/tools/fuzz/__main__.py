"""Fuzz the readers of untrusted input, guided by the code that each input reaches.

    python -m lab.tools.fuzz [TARGET...] [--executions N] [--keep] [--table FILE]

Every input of the corpus is first, then mutations of inputs that reached new code (atheris, with libFuzzer).
A finding ends its target: the input and the error are shown, with the name of the file that has the input.
``--keep`` puts inputs that reach new lines into the corpus. With ``--table`` a target runs until it has had N
executions, including those in the file, the fastest target first, in runs of two minutes, after each of which
the file is written: a stopped campaign continues with the same command. Exits with 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lab.tools.fuzz.growth import grown
from lab.tools.fuzz.process import fuzz
from lab.tools.fuzz.table import Table, executions_per_s
from lab.tools.fuzz.target import read_corpus, write_corpus
from lab.tools.fuzz.targets import TARGETS

EXECUTIONS: Final = 100_000
RUN_S: Final = 120
"""Seconds of a campaign's run, before its table is written."""

_ENDED_BY_CTRL_C: Final = 130


def keep(name: str, folder: Path) -> None:
    """Add a run's inputs to the corpus if they reach new lines."""
    corpus = read_corpus(name)
    found = (path.read_bytes() for path in (folder / name).iterdir())
    kept = write_corpus(name, grown(TARGETS[name], corpus, found))
    print(f"{name:<12} {kept} inputs in the corpus, {len(corpus)} before", flush=True)


def run_once(names: Sequence[str], executions: int, seed: int, findings: Path, *, keeps: bool) -> bool:
    """Fuzz each target once; returns whether all passed."""
    held = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="antiphon-fuzz-") as temporary:
            is_held = not fuzz(name, executions, seed, findings, Path(temporary)).finding
            if keeps and is_held:
                keep(name, Path(temporary))
            held &= is_held
    return held


def run_campaign(names: Sequence[str], table: Table, executions: int, findings: Path) -> bool:
    """Fuzz each target until it has had this number of executions, or has a finding; returns whether all
    passed."""
    held = True
    for name in sorted(names, key=executions_per_s, reverse=True):
        while left := table.left(name, executions):
            outcome = fuzz(name, left, executions - left + 1, findings, table.inputs, most_s=RUN_S)
            table.add(name, outcome)
            if outcome.finding:
                held = False
                break
    print(table.markdown())
    return held


def main(argv: list[str]) -> int:
    """Run the command line: fuzz the named targets, or all."""
    parser = argparse.ArgumentParser(
        description="Fuzz the parsers of data from clients, files and other processes."
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"[all]: {', '.join(TARGETS)}")
    parser.add_argument(
        "--executions", type=int, default=EXECUTIONS, help="executions of each target [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the mutations [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new lines to the corpus")
    parser.add_argument(
        "--findings", type=Path, default=Path("out/fuzz"), help="folder for inputs that fail [%(default)s]"
    )
    parser.add_argument("--table", type=Path, help="continue the campaign in this file")
    args = parser.parse_args(argv)
    unknown = [name for name in args.targets if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]}; there are: {', '.join(TARGETS)}")
    args.findings.mkdir(parents=True, exist_ok=True)
    names = args.targets or list(TARGETS)
    try:
        if args.table is not None:
            held = run_campaign(names, Table(args.table), args.executions, args.findings)
        else:
            held = run_once(names, args.executions, args.seed, args.findings, keeps=args.keep)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _ENDED_BY_CTRL_C
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

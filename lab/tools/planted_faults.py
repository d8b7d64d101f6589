"""Plants faults in a copy of the repository, one at a time, and runs the tests that should find each.

Usage: python -m lab.tools.planted_faults [--only NAME ...]

The faults are in ``planted_faults.toml``: a text that occurs exactly once in a file, its replacement, and the
narrowest tests that find it. Exits with 1 if a fault is missed or cannot be planted.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.repo.tracked import ROOT, tracked_files

TABLE: Final = ROOT / "lab" / "tools" / "planted_faults.toml"
SOURCES: Final = ("server", "clients", "quantize", ".")
LONGEST_TEST_S: Final = 120
"""Seconds; a test that hangs has found its fault: a lost wake-up, or a lost end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``text`` in ``file`` becomes ``replacement``, which at least one of ``tests`` must find."""

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]


class Outcome(StrEnum):
    """The result of a planted fault."""

    CAUGHT = "caught"
    MISSED = "MISSED"
    BROKEN = "BROKEN"  # nothing was tested


def read_faults(table: Path = TABLE) -> list[Fault]:
    """Return the faults of a table, in its order."""
    entries = tomllib.loads(table.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def misplaced(fault: Fault, root: Path = ROOT) -> str:
    """Return the reason why a fault cannot be planted, with the remedy, or ""."""
    file = root / fault.file
    count = file.read_text(encoding="utf-8").count(fault.text) if file.is_file() else 0
    if count == 1:
        return ""
    return (
        f"planted fault '{fault.name}': its text stands {count} times in {fault.file}, not once; give it the "
        "file and the text of today in lab/tools/planted_faults.toml, or delete it there if nothing can have "
        f"this fault any more; then run python -m lab.tools.planted_faults --only {fault.name}"
    )


def plant(fault: Fault, root: Path) -> Outcome:
    """Plant a fault in the copy ``root``, run its tests, and restore the copy; returns the result."""
    file = root / fault.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(fault.text, fault.replacement), encoding="utf-8")
    try:
        return run_tests(fault.tests, root)
    finally:
        file.write_text(sound, encoding="utf-8")


def run_tests(tests: Sequence[str], root: Path) -> Outcome:
    """Run tests in a copy until one fails; prints the failed test."""
    command = [sys.executable, "-B", "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    command += [f"--timeout={LONGEST_TEST_S}", *tests]
    paths = os.pathsep.join(str(root / source) for source in SOURCES)
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    failed = re.search(r"^(FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    print("   ", failed[2] if failed else run.stdout[-2000:] + run.stderr[-2000:])
    if run.returncode == 0:
        return Outcome.MISSED
    return Outcome.CAUGHT if run.returncode == 1 else Outcome.BROKEN


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant faults and print the result of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these faults only")
    only = parser.parse_args(arguments).only
    faults = [fault for fault in read_faults() if not only or fault.name in only]
    if unknown := set(only) - {fault.name for fault in faults}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        root = Path(folder)
        for path in tracked_files():
            copy = root / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        for fault in faults:
            why_not = misplaced(fault, root)
            outcomes.append(Outcome.BROKEN if why_not else plant(fault, root))
            print(outcomes[-1], fault.name, why_not, flush=True)
    print(*(f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome), sep=", ")
    return int(set(outcomes) != {Outcome.CAUGHT})


if __name__ == "__main__":
    sys.exit(main())

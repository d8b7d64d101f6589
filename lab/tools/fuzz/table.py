"""A table of the executions of each target in a campaign so far, over any number of runs."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from lab.tools.fuzz.process import Outcome
from lab.tools.fuzz.target import read_corpus, try_input
from lab.tools.fuzz.targets import TARGETS

TRY_S: Final = 0.2
"""Seconds for measuring a target's speed."""

HEAD: Final = "| target | executions | seconds | findings | version |\n|---|---|---|---|---|"


@dataclass(slots=True)
class Row:
    """The executions and the time of one target; ``findings`` are files, ``version`` is the commit of the
    last run."""

    executions: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)
    version: str = ""


class Table:
    """The rows of all targets that have run, kept in a JSON file next to their new inputs."""

    def __init__(self, path: Path) -> None:
        """Continue with the file's content."""
        self._path = path
        self.inputs = path.with_suffix("")
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.rows: dict[str, Row] = {name: Row(**values) for name, values in found.items()}

    def left(self, name: str, executions: int) -> int:
        """Return how many of ``executions`` a target has not had yet."""
        return max(0, executions - self.rows.get(name, Row()).executions)

    def add(self, name: str, outcome: Outcome) -> None:
        """Add the outcome of a run to the row of a target."""
        row = self.rows.setdefault(name, Row())
        row.executions += outcome.executions
        row.seconds = round(row.seconds + outcome.seconds, 1)
        row.findings += [outcome.finding] * bool(outcome.finding)
        row.version = version()
        written = json.dumps({name: asdict(row) for name, row in self.rows.items()}, indent=1)
        self._path.write_text(written + "\n", encoding="utf-8")

    def markdown(self) -> str:
        """Return the table in Markdown, with a line for each target."""
        lines = (
            f"| `{name}` | {row.executions:,} | {row.seconds:,.0f} | {len(row.findings)} | {row.version} |"
            for name, row in sorted(self.rows.items())
        )
        return "\n".join((HEAD, *lines))


def version() -> str:
    """Return the current commit of the checkout."""
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def executions_per_s(name: str) -> float:
    """Measure the executions per second of a target on its corpus."""
    corpus, count, begun_s = read_corpus(name), 0, time.monotonic()
    while (elapsed_s := time.monotonic() - begun_s) < TRY_S or not count:
        try_input(TARGETS[name], corpus[count % len(corpus)])
        count += 1
    return count / max(elapsed_s, 1e-9)

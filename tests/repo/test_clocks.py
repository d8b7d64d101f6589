"""Steps of the wall clock do not affect calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.tracked import ROOT, tracked_files

SERVER = ROOT / "server" / "antiphon"
LAYERS = ("audio", "backends", "engine", "ipc", "protocol", "supervisor", "serve/calls", "serve/transport")
STAMPS = {"engine/metrics.py"}
"""What a scraper is told: when counting began."""

WALL_CLOCKS = {"time", "time_ns", "now", "utcnow", "today", "CLOCK_REALTIME"}


def wall_clocks(source: str) -> Iterator[str]:
    """The names by which a module reads the wall clock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("time", "datetime", "date") and node.attr in WALL_CLOCKS:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (alias.name for alias in node.names if alias.name in WALL_CLOCKS)


def test_a_wall_clock_is_found() -> None:
    assert list(wall_clocks("import time\na = time.time\nb = time.monotonic()")) == ["time.time"]
    assert list(wall_clocks("from time import time_ns")) == ["time_ns"]
    assert list(wall_clocks("datetime.now()")) == ["datetime.now"]


def test_calls_are_timed_by_the_monotonic_clock_alone() -> None:
    found = {
        path.relative_to(SERVER).as_posix(): list(wall_clocks(path.read_text()))
        for path in tracked_files()
        if path.suffix == ".py" and any(path.is_relative_to(SERVER / layer) for layer in LAYERS)
    }
    assert len(found) > 100
    assert {path for path, clocks in found.items() if clocks} == STAMPS

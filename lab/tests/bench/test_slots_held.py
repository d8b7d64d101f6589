"""Promised and held calls: the runs of a configuration, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.bench import slots_held
from lab.bench.harness import Results, Values
from lab.bench.slots_held import CONFIGURATIONS, measure, render


def test_eight_configurations_with_their_commands() -> None:
    assert len({str(it) for it in CONFIGURATIONS}) == 8
    command = CONFIGURATIONS[1].command(["antiphon"], 9000, "auto")
    words = " ".join(command)
    assert words.startswith("antiphon serve --log-level warning --model tiny --backend-option threads=1 ")
    assert words.endswith("--port 9000 --front-ends 2 --slots auto")


@pytest.mark.parametrize(
    ("most", "verdicts"), [(24, "missed | "), (25, "held | missed"), (40, "held | held")]
)
def test_a_promise_and_its_multiples(
    most: int, verdicts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object) -> Values:
        wanted = arguments[3] if len(arguments) > 3 else None
        calls = wanted if isinstance(wanted, dict) else {"tiny": 20}
        faults = ["tiny: late"] if calls["tiny"] > most else []
        return {
            "promised": {"tiny": 20},
            "calls": calls,
            "p99_ms": {"tiny": 50.0},
            "late": 0,
            "faults": faults,
        }

    monkeypatch.setattr(slots_held, "run", run)
    results = Results(tmp_path / "held.json", settings={}, resume=False)
    measure(results, CONFIGURATIONS[0], ["antiphon"], 1.0, 1)
    line = render(results.values).splitlines()[-1]
    assert line.split("|")[1:5] == [f" {CONFIGURATIONS[0]} ", " 20 ", " 1 of 1 ", " 50 "]
    assert line.endswith(f"| {verdicts} |")

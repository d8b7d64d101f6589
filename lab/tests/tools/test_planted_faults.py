"""Every planted fault can be planted, and planting one reports whether its tests find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.tools.planted_faults import Fault, Outcome, misplaced, plant, read_faults
from tests.repo.tracked import ROOT

FAULTS = read_faults()
LEAST = 60


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_text_of_a_fault_stands_once(fault: Fault) -> None:
    assert misplaced(fault) == ""
    assert fault.text != fault.replacement
    if fault.file.endswith(".py"):
        planted = (ROOT / fault.file).read_text(encoding="utf-8").replace(fault.text, fault.replacement)
        compile(planted, fault.file, "exec")
    assert [test for test in fault.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_there_are_many_faults_of_different_names() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= LEAST


def _project(root: Path) -> Fault:
    (root / "sums.py").write_text("def twice(x):\n    return 2 * x\n")
    (root / "test_sums.py").write_text("from sums import twice\ndef test_it(): assert twice(2) == 4\n")
    return Fault("triple", "sums.py", "2 * x", "3 * x", ("test_sums.py",))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, Outcome.CAUGHT),
        ({"replacement": "x + 2"}, Outcome.MISSED),
        ({"tests": ("test_other.py",)}, Outcome.BROKEN),
    ],
)
def test_a_fault_is_caught_or_missed_and_the_file_is_whole_again(
    tmp_path: Path, change: dict[str, str | tuple[str, ...]], outcome: Outcome
) -> None:
    fault = replace(_project(tmp_path), **change)  # type: ignore[arg-type]
    assert plant(fault, tmp_path) is outcome
    assert (tmp_path / "sums.py").read_text() == "def twice(x):\n    return 2 * x\n"


def test_a_fault_whose_text_is_gone_says_what_to_do(tmp_path: Path) -> None:
    fault = _project(tmp_path)
    assert misplaced(fault, tmp_path) == ""
    assert misplaced(replace(fault, text="4 * x"), tmp_path) == (
        "planted fault 'triple': its text stands 0 times in sums.py, not once; give it the file and the text "
        "of today in lab/tools/planted_faults.toml, or delete it there if nothing can have this fault any "
        "more; then run python -m lab.tools.planted_faults --only triple"
    )
    assert "stands 2 times in sums.py" in misplaced(replace(fault, text="x"), tmp_path)

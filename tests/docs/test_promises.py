"""Every invariant, decision and fault names existing tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.docs.named_tests import has_test
from tests.docs.promises import FAULTS, INVARIANTS
from tests.repo.tracked import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize("promises", [INVARIANTS, FAULTS], ids=["invariants", "faults"])
def test_every_promise_names_tests_that_exist(promises: Mapping[str, Sequence[str]]) -> None:
    assert {what for what, tests in promises.items() if not tests} == set()
    assert {named for tests in promises.values() for named in tests if not has_test(named)} == set()


def test_a_test_that_is_not_there_is_found() -> None:
    assert has_test("docs/test_promises.py::that_is_not_there_is_found")
    assert has_test("engine/test_isolation.py::TestCallers")
    for named in (
        "docs/test_promises.py::no_such",
        "docs/test_nothing.py",
        "docs/named_tests.py::has",
        "docs/test_promises.py::DOCS",
    ):
        assert not has_test(named), named


@pytest.mark.parametrize("record", sorted((DOCS / "adr").glob("0*.md")), ids=lambda path: path.stem)
def test_a_decision_names_its_tests(record: Path) -> None:
    named = re.findall(r"`tests/(\w+|[\w/]+/test_\w+(?:\.py)?(?:::\w+)?)`", record.read_text())
    assert named
    assert [name for name in named if not (has_test(name) or (ROOT / "tests" / name).is_dir())] == []


def test_no_fault_of_the_matrix_is_left_out() -> None:
    matrix = (DOCS / "reliability.md").read_text().partition("<!-- faults -->")[2]
    matrix = matrix.partition("<!-- end of faults -->")[0]
    assert list(FAULTS) == re.findall(r"^\| `(\w+)` \|", matrix, re.MULTILINE)


def test_no_document_names_a_test_file_that_is_gone() -> None:
    gone = {
        f"{path.relative_to(ROOT)}: {named}"
        for path in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"))
        for named in re.findall(r"\b((?:lab/)?tests/[\w/]+\.(?:py|sh|js|txt))\b", path.read_text())
        if not (ROOT / named).exists()
    }
    assert gone == set()

"""Counts of the code on constructed sources; and the product is within its budgets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.budgets import SEAM_VERBS, over_budget, verbs_that_are_gone
from tests.repo.counts import (
    Classes,
    code_by_package,
    definitions,
    lines_of,
    locks,
    private_uses,
    short_and_used_once,
)
from tests.repo.source import Source, read_sources


def _sources(folder: Path, **texts: str) -> list[Source]:
    """Sources by their path without ``.py``; ``__`` stands for a slash."""
    paths = {name.replace("__", "/") + ".py": text for name, text in texts.items()}
    for path, text in paths.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return read_sources(folder, list(paths))


def test_blank_lines_comments_and_strings_alone_are_no_code(tmp_path: Path) -> None:
    text = '"""A\n\nmodule."""\n\nA = 1  # one\n"""What A is."""\n# why\nB = """\ntext\n"""\n'
    sources = _sources(
        tmp_path, server__antiphon__a=text, server__antiphon__ipc__b=text, clients__antiphon_client__c=text
    )
    assert code_by_package(sources) == {
        "antiphon": 4,
        "antiphon.ipc": 4,
        "antiphon_client": 4,
        "server": 8,
        "server, clients, quantize": 12,
    }
    assert lines_of(sources, ["server/antiphon/a.py"]) == 10


def test_classes_are_as_deep_as_their_longest_chain(tmp_path: Path) -> None:
    a = "class A: a = 1\nclass B(A): b = 1\nclass E(ValueError): e = 1\nclass F(E): f = 1\nclass G(F): ..."
    b = "import a\nclass N(a.B): 'A name.'\nclass C(list[int], N): c = 1\nclass D(C): d = 1\n"
    assert Classes(_sources(tmp_path, a=a, b=b)).deep() == [(4, "b.py: D"), (3, "b.py: C")]


def test_a_protocol_has_the_classes_with_all_its_names(tmp_path: Path) -> None:
    a = "class P(Protocol):\n    size: int\n    def go(self): ...\n"
    base = "class Base:\n    def go(self): ...\n"
    one = "class One(Base):\n    def __init__(self):\n        self.size = 1\n"
    two = "class Two(Base):\n    size: int = 1\n"
    assert Classes(_sources(tmp_path, a=a, b=base + one)).needless_protocols() == ["a.py: P"]
    assert Classes(_sources(tmp_path, a=a, b=base + one + two)).needless_protocols() == []


def test_locks_verbs_and_short_functions_are_found(tmp_path: Path) -> None:
    text = (
        "import threading\n"
        "lock = threading.Condition(threading.Lock())\n"
        "def arm(): return _once() + _twice() + _twice()\n"
        "def _once(): ...\n"
        "def _twice(): ...\n" + "def _long():\n" + "    pass\n" * 7 + "_long()\n"
    )
    sources = _sources(tmp_path, server__antiphon__ipc__a=text, server__antiphon__audio__b=text)
    at = "server/antiphon/ipc/a.py"
    assert locks(sources[:1]) == [f"{at}:2"]
    assert definitions(sources, ["arm", "note"]) == [f"{at}:3 arm"]
    assert short_and_used_once(sources[:1]) == [f"{at}:4 _once()"]


def test_private_names_of_the_product_are_found_in_tests(tmp_path: Path) -> None:
    product = "def _f(): ...\nclass A:\n    def __init__(self):\n        self._x = 1\n"
    test = "from a import A, _f\nA()._x\nA()._other\nself._x\nA().__init__()\n"
    sources = _sources(tmp_path, a=product, tests__b=test)
    assert private_uses(sources[:1], sources[1:]) == ["tests/b.py:1 _f", "tests/b.py:2 _x"]


@pytest.mark.parametrize("count", [9, 10, 11])
def test_only_more_than_its_budget_is_a_fault(count: int) -> None:
    said = [
        f"locks: {count} counted, 10 in BUDGETS of tests/repo/budgets.py; make it smaller, or raise the "
        "budget as docs/adr/0032-budgets.md says (python -m tests.repo.report 'locks' lists the places)"
    ]
    assert list(over_budget({"locks": count}, {"locks": 10})) == (said if count > 10 else [])


def test_a_count_without_a_budget_and_a_budget_without_a_count_are_faults() -> None:
    said = list(over_budget({"new": 1}, {"old": 1}))
    assert said[0].startswith("new: 1 counted, 0 in BUDGETS")
    assert said[1:] == ["old: nothing is counted for it; delete it from BUDGETS of tests/repo/budgets.py"]


def test_a_verb_that_no_function_has_is_a_fault() -> None:
    found = {"definitions of the seam's verbs": [f"a.py:1 {verb}" for verb in SEAM_VERBS[1:]]}
    assert list(verbs_that_are_gone(found)) == [
        f"SEAM_VERBS of tests/repo/budgets.py names {SEAM_VERBS[0]}, which no function of the seam has"
    ]

"""The table of bounds in docs/reliability.md, against the options, the constants and the tests it names."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from antiphon.config import Limits, ServerConfig
from antiphon.option import AUTO, table_of
from tests.docs.named_tests import has_test

ROOT = Path(__file__).parents[2]
HEAD = "| bound | default | name | reason, and what happens beyond it | test |"


class Row(NamedTuple):
    """A row of the table, its cells without marks."""

    bound: str
    default: str
    name: str
    reason: str
    tests: tuple[str, ...]


def read_table() -> list[Row]:
    lines = (ROOT / "docs" / "reliability.md").read_text().splitlines()
    rows = []
    for line in lines[lines.index(HEAD) + 2 :]:
        if not line.startswith("|"):
            break
        bound, default, name, reason, tests = (cell.strip() for cell in line.strip("|").split(" | "))
        rows.append(
            Row(bound, default.strip("`"), name.strip("`"), reason, tuple(re.findall(r"`(.+?)`", tests)))
        )
    return rows


ROWS = read_table()


def default_of(name: str) -> str:
    """What the code has: of an option, or of ``path.py::CONSTANT``."""
    path, separator, constant = name.partition("::")
    if not separator:
        found = table_of(ServerConfig)[name].default
        return AUTO if found is None else str(found)
    module = importlib.import_module("antiphon." + path.removesuffix(".py").replace("/", "."))
    return str(getattr(module, constant))


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_bound_has_the_default_of_the_code_a_reason_and_a_test(row: Row) -> None:
    assert row.default == default_of(row.name)
    assert row.reason
    assert row.tests
    assert [named for named in row.tests if "::" not in named or not has_test(named)] == []


def test_every_limit_of_the_configuration_is_in_the_table() -> None:
    assert {field.name for field in dataclasses.fields(Limits)} - {row.name for row in ROWS} == set()
    assert len(ROWS) == len({row.name for row in ROWS})

"""The tables of models and hardware match the output of ``antiphon models``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.model_tables import PAGES, with_tables
from tests.repo.tracked import ROOT


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_are_those_of_the_code(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert "python -m tests.docs.model_tables" in page
    assert with_tables(page) == page


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150

"""The tables of models and hardware are those that ``antiphon models`` computes."""

from __future__ import annotations

import re

from antiphon_quantize.advice.families import load_families
from tests.docs.model_tables import PAGE, sessions, with_tables
from tests.repo.tracked import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page


def test_the_readme_has_the_same_numbers() -> None:
    (moshi,) = (family for family in load_families().speech if family.name == "moshiko")
    shown = re.findall(
        r"^\| NVIDIA, (\d+) GB \|[^|]+\| (\d+) in bf16, (\d+) in INT8 \|", README, re.MULTILINE
    )
    assert len(shown) == 3
    for memory, *numbers in shown:
        assert " / ".join(numbers) == sessions(moshi, f"{memory}GB")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150

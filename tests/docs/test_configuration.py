"""docs/configuration.md matches the table of options in the code."""

from __future__ import annotations

from tests.docs.option_tables import PAGE, with_tables


def test_the_page_has_every_option_and_constant() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run: python -m tests.docs.option_tables"

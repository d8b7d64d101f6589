"""Pages of reports: prose in lines of at most 100 columns, tables and code unchanged."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 100
UNBROKEN: Final = ("#", "|", "<", "!", ">", "    ", "```", "- ")


def write_page(path: Path, text: str) -> str:
    """Write a page of Markdown with its prose wrapped; returns the text."""
    page = "\n".join(_lines(text)) + "\n"
    path.write_text(page, encoding="utf-8")
    return page


def _lines(text: str) -> Iterator[str]:
    is_code = False
    for line in text.rstrip("\n").split("\n"):
        is_code ^= line.startswith("```")
        if is_code or line.startswith(UNBROKEN) or len(line) <= COLUMNS:
            yield line
        else:
            yield from textwrap.wrap(line, COLUMNS, break_long_words=False, break_on_hyphens=False)

"""The terms of docs/glossary.md: each is defined there once, and on no other page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_ENTRY = re.compile(r"^\*\*(?P<word>[a-z][a-z -]*)\*\*:", re.MULTILINE)
"""A definition begins a line: ``**tick**: One step of ...``."""


def words(page: str) -> list[str]:
    """The words that a page defines, in order."""
    return [match["word"] for match in _ENTRY.finditer(page)]


def faults_of_words(docs: Path) -> Iterator[str]:
    """Words that are defined twice, a sentence each."""
    known = words((docs / "glossary.md").read_text(encoding="utf-8"))
    for word in sorted({word for word in known if known.count(word) > 1}):
        yield f"docs/glossary.md defines '{word}' {known.count(word)} times"
    for page in sorted(docs.rglob("*.md")):
        if page.name == "glossary.md":
            continue
        text = page.read_text(encoding="utf-8")
        for word in sorted(set(known)):
            if re.search(rf"^(- )?\*\*{re.escape(word)}\*\*:", text, re.MULTILINE | re.IGNORECASE):
                yield f"{page.relative_to(docs.parent)} defines '{word}', which docs/glossary.md defines"

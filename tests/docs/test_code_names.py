"""Names of code in documents: names in backticks and paths exist in the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import tokens
from tests.repo.tracked import ROOT, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md" and path.is_relative_to(ROOT / "docs")]
CODE = {".py", ".js", ".mjs", ".toml", ".yml", ".yaml", ".json", ".cfg", ".html", ".c", ".map", ".sh"}
ROOTS = [
    *("", "server/antiphon", "server/antiphon/serve", "server/antiphon/engine", "server/antiphon/backends"),
    *("quantize/antiphon_quantize", "web/static", "tests", "tests/engine", "tests/quantize", "docs"),
]
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\w*\))?")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|js|toml|cfg|yml|yaml|map|md|json)")


_METRIC = re.compile(r"^antiphon_|_(?:total|bucket)$")
"""What a metric's name has around that of its row."""
NOT_HERE = {
    *("SO_REUSEPORT", "TimeoutStopSec", "process_open_fds", "process_", "_total", "_bucket"),
    *("moshi/server.py", "lm_generate_multistream.rs", "call_id", "X_scb"),
    *("KYUTAI_STT_URL", "KYUTAI_TTS_URL"),
    *("out/card.md", "out/gpu/PLAN.json", "lab.bench.mixed_load", "lab.bench.quantize_7b"),
    *("item_retrieve_invalid_item_id", "item_delete_invalid_item_id"),
}
"""Names of other projects, of what a command writes, of code at a named commit, and words that are joined."""


def names_in(page: str) -> Iterator[str]:
    """What stands in backticks, a line's code each."""
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline":
                yield child.content


@cache
def words_of_the_tree() -> frozenset[str]:
    """Every word of the code, and of the names of its files; of the tests too, which call other programs."""
    files = [path for path in tracked_files() if path.suffix in CODE and path != Path(__file__)]
    texts = (path.read_text(encoding="utf-8", errors="ignore") for path in files)
    return frozenset(word for text in (*texts, *map(str, files)) for word in re.findall(r"\w+", text))


def is_there(name: str) -> bool:
    """Whether the tree has what is written like a name or like a path; other code is not judged."""
    if _PATH.fullmatch(name):
        return any((ROOT / root / name).is_file() for root in ROOTS)
    if not _NAME.fullmatch(name) or not re.search(r"_|\.|[a-z][A-Z]", name):
        return True
    return all(_METRIC.sub("", word) in words_of_the_tree() for word in re.findall(r"\w+", name))


def gone(page: str) -> list[str]:
    """The names of a page that the tree does not have."""
    return [name for name in names_in(page) if not (is_there(name) or name in NOT_HERE or "NAME" in name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_what_is_there(page: Path) -> None:
    assert gone(page.read_text(encoding="utf-8")) == []


def test_a_name_that_is_gone_is_found() -> None:
    page = "`engine/rows.py` `engine/nothing.py` `Backend.step` `Backend.leap_nowhere` `no_such_phrase`"
    assert gone(page) == ["engine/nothing.py", "Backend.leap_nowhere", "no_such_phrase"]

"""Pages keep their structure: broken fences, tables and lists are found.

Code stands in named fences only, because nothing protects an indented block from a re-wrap.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import span, tokens
from tests.repo.tracked import ROOT, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md" and not path.is_relative_to(ROOT / "lab")]
_FENCE = re.compile(r"^\s*```")
_PIPE = re.compile(r"(?<!\\)\|")


def faults_of_shape(text: str) -> list[str]:
    """What is broken in a page, a sentence with its line each."""
    lines, faults = text.split("\n"), []
    fenced, in_tables = set[int](), set[int]()
    for token in tokens(text):
        if token.type not in ("fence", "code_block", "table_open", "ordered_list_open"):
            continue
        first, end = span(token)
        where = f"line {first + 1}"
        if token.type == "code_block":
            faults.append(f"{where}: an indented code block, needs a fence")
        elif token.type == "fence":
            fenced |= set(range(first, end))
            if not token.info.strip():
                faults.append(f"{where}: a fence without a language")
            if not _FENCE.match(lines[end - 1]) or end - first < 2:
                faults.append(f"{where}: a fence that is not closed")
            if token.info.split()[:1] == ["text"] and end - first == 3 and len(token.content) > 100:
                faults.append(f"{where}: a drawing of one line")
        elif token.type == "ordered_list_open" and token.attrGet("start") is not None:
            faults.append(f"{where}: a list that begins with {token.attrGet('start')}")
        elif token.type == "table_open":
            in_tables |= set(range(first, end))
            columns = len(_PIPE.findall(lines[first]))
            for number in range(first, end):
                row = lines[number].strip()
                if not (row.startswith("|") and row.endswith("|")) or len(_PIPE.findall(row)) != columns:
                    faults.append(f"line {number + 1}: a row that is not of the table's {columns - 1} cells")
    for number, line in enumerate(lines):
        if line.lstrip().startswith("|") and number not in in_tables | fenced:
            faults.append(f"line {number + 1}: a row outside of a table")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_its_shape(page: Path) -> None:
    assert faults_of_shape(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("A picture:\n\n    cli\n     |\n    serve\n", "line 3: an indented code block, needs a fence"),
        ("1. First\n\n       code\n", "line 3: an indented code block, needs a fence"),
        ("```\ncode\n```\n", "line 1: a fence without a language"),
        ("```sh\ncode\n", "line 1: a fence that is not closed"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\nand more\n", "line 4: a row that is not of the table's 2 cells"),
        ("| a | b |\n|---|---|\n| 1 |\n", "line 3: a row that is not of the table's 2 cells"),
        ("| a | b | |---|---|\n| 1 | 2 |\n", "line 1: a row outside of a table"),
        ("1. First:\n\n```sh\ncode\n```\n\n2. Second\n", "line 7: a list that begins with 2"),
        ("words ```sh code\n``` more\n", "line 2: a fence that is not closed"),
    ],
)
def test_a_broken_shape_is_found(text: str, fault: str) -> None:
    assert fault in faults_of_shape(text)

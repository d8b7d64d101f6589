"""Programs in pages are complete files of examples/, which tests/stock/test_examples.py runs."""

from __future__ import annotations

import pytest

from tests.docs.blocks import Block, read_blocks
from tests.repo.tracked import ROOT, tracked_files

SHOWN = [
    (name, block)
    for name in (str(path.relative_to(ROOT)) for path in tracked_files() if path.suffix == ".md")
    if name.startswith(("docs/", "README"))
    for block in read_blocks(ROOT / name)
    if block.language in ("python", "javascript", "html")
]


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=lambda it: getattr(it, "mark", it))
def test_a_program_is_a_file_of_the_examples(page: str, block: Block) -> None:
    assert block.mark.startswith("examples/"), f"{page}, line {block.line}: no file of examples/ is named"
    assert block.body == (ROOT / block.mark).read_text(encoding="utf-8")


def test_there_are_programs() -> None:
    assert len(SHOWN) >= 1

"""Links between the project's documents have existing targets, including headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import without_blocks
from tests.repo.tracked import ROOT, tracked_files

DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]
_LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|source|a)\s[^>]*?(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+\s+(.+?)\s*$", re.MULTILINE)


def anchors(document: Path) -> set[str]:
    """The names that the headings of a document are linked by."""
    headings = _HEADING.findall(document.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path, root: Path = ROOT) -> list[str]:
    """The relative links of a document that lead nowhere."""
    broken = []
    for match in _LINK.finditer(without_blocks(document.read_text())):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        inside = target.is_relative_to(root) and target.exists()
        if not inside or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def linked_documents(document: Path) -> set[Path]:
    """The documents that one leads to."""
    links = (match[1] or match[2] for match in _LINK.finditer(without_blocks(document.read_text())))
    targets = ((document.parent / link.partition("#")[0]).resolve() for link in links if ":" not in link)
    return {target for target in targets if target.suffix == ".md" and target.is_file()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(document: Path) -> None:
    assert broken_links(document) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# A head\n[a](gone.md) [b](#a-head) [c](#tail) [d](https://example.org) [e](page.md#a-head)\n"
        '```sh x\n[f](no)\n```\n`[g](no)`\n<img src="gone.svg">\n'
    )
    assert broken_links(document, tmp_path) == ["gone.md", "#tail", "gone.svg"]


def test_every_document_is_reached_from_the_readme() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        reached |= new
        new = set().union(*(linked_documents(document) for document in new)) - reached
    documents = {path for path in DOCUMENTS if path.parts[len(ROOT.parts)] == "docs" or path.parent == ROOT}
    assert documents - reached == set()

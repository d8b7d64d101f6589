"""Lists are complete: folders, decisions, pages, verbs."""

from __future__ import annotations

import re

from tests.repo.tracked import ROOT, tracked_files

ARCHITECTURE = ROOT / "docs" / "architecture.md"
DECISIONS = ROOT / "docs" / "adr"
MOST_WORDS = 720
"""Of a decision without its tables: a page."""


def test_every_folder_with_code_has_its_sentence() -> None:
    suffixes = {".py", ".js", ".css", ".svg", ".safetensors", ".ogg"}
    folders = {path.parent.relative_to(ROOT) for path in tracked_files() if path.suffix in suffixes}
    # A folder of tests mirrors a package, a folder of assets or web files belongs to the one above it.
    tops = {
        folder
        for folder in folders
        if folder.parts
        and folder.parts[0] not in {"tests", "docs", "web"}
        and folder.parts[:2] != ("lab", "tests")
    }
    named = set(re.findall(r"^\s*- `([^`]+)/`", ARCHITECTURE.read_text(), re.MULTILINE))
    missing = {
        folder.as_posix()
        for folder in tops
        if not any(parent.as_posix() in named for parent in (folder, folder.parent) if parent.parts)
        and not folder.is_relative_to("server/antiphon/assets")
    }
    assert missing == set()
    assert {name for name in named if not (ROOT / name).is_dir()} == set()


def test_every_decision_is_listed_and_numbered_once() -> None:
    files = {path.name for path in DECISIONS.glob("[0-9]*.md")}
    listing = (DECISIONS / "README.md").read_text()
    listed = re.findall(r"^\| \[(\d{4})\]\((\d{4}-[^)]+\.md)\)", listing, re.MULTILINE)
    assert {name for _, name in listed} == files
    assert [number for number, _ in listed] == sorted({name[:4] for name in files})
    for number, name in listed:
        title = (DECISIONS / name).read_text().partition("\n")[0].removeprefix(f"# {number}. ")
        assert f"| [{number}]({name}) | {title} |\n" in listing


def test_every_decision_has_a_status_and_the_usual_headings() -> None:
    for path in DECISIONS.glob("[0-9]*.md"):
        text = path.read_text()
        assert re.match(rf"# {path.name[:4]}\. \S", text), path.name
        assert re.search(r"^Status: (accepted|replaced by \d{4})", text, re.MULTILINE), path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE)[:3] == ["Question", "Options", "Decision"], (
            path.name
        )
        prose = [line for line in text.splitlines() if not line.startswith("|")]
        assert len(" ".join(prose).split()) <= MOST_WORDS, f"{path.name}: a decision is a page at most"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = (ROOT / "site" / "index.md").read_text().splitlines()
    pages = [path.relative_to(ROOT) for path in tracked_files() if path.suffix == ".md"]
    shown = [page for page in pages if page.parts[0] == "docs" and page.parts[1] != "adr"]
    assert [page.as_posix() for page in shown if page.with_suffix("").as_posix() not in listed] == []


def test_every_verb_has_a_help_text() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    described = re.findall(r"^([a-z-]+):[^=\n]*## \S", makefile, re.MULTILINE)
    assert described == phony.split()
    assert described[:6] == ["help", "serve", "demo", "test", "test-fast", "test-lab"]

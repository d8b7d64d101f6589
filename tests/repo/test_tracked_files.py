"""Forbidden content of tracked files: local paths, registry addresses, large blobs."""

from __future__ import annotations

import re

import pytest

from tests.repo.tracked import ROOT, tracked_files, tracked_texts

# Written as patterns that do not match themselves.
FORBIDDEN = {
    "a package registry's host": (
        r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|download\.pytorch\.org|deb\.debian\.org"
    ),
    "somebody's home folder": r"(?<![\w.])/(?:root|home|Users)/\w",
    "a path of one machine": r"(?<![\w.])/(?:work|opt/wheels|opt/pypi)\b",
    "an issue's number": r"(?i)\bissue #?\d",
    "unfinished work": r"\b(?:TO[D]O|FIX[M]E|XX[X])\b",
    "a conflict that was committed": r"^(?:<{7}|>{7}) ",
}
MAX_FILE_BYTES = 16 * 2**20
ASSETS, WEIGHTS = "server/antiphon/assets/", "weights/antiphon_weights/"
LARGE = {f"{WEIGHTS}{model}/model.safetensors" for model in ("tiny", "tiny-tts")}
"""The files that may be larger, within what each package has for its models."""
MAX_ASSETS_BYTES, MAX_WEIGHTS_BYTES = 49e6, 75e6


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_text_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in tracked_texts().items()
        for match in pattern.finditer(text)
    ]
    assert found == []


def test_no_file_is_a_large_blob() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked_files()}
    large = {name for name, size in sizes.items() if size > MAX_FILE_BYTES}
    assert large == LARGE
    for folder, most in ((ASSETS, MAX_ASSETS_BYTES), (WEIGHTS, MAX_WEIGHTS_BYTES)):
        assert sum(size for name, size in sizes.items() if name.startswith(folder)) <= most


def test_no_document_has_a_place_left_to_fill() -> None:
    texts = {path: path.read_text() for path in tracked_files() if path.suffix == ".md"}
    assert [path.name for path, text in texts.items() if re.search(r"@[A-Z]{3,}@", text)] == []


def test_text_files_end_with_one_newline_and_no_trailing_blanks() -> None:
    untidy = [
        str(path.relative_to(ROOT))
        for path, text in tracked_texts().items()
        if path.suffix in {".py", ".md", ".toml", ".css", ".html", ".js"}
        and text
        and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t]\n", text))
    ]
    assert untidy == []


def test_the_patterns_find_what_they_are_for() -> None:
    examples = {
        "a package registry's host": "https://files.python" + "hosted.org/x",
        "somebody's home folder": "open('/ho" + "me/ada/x')",
        "a path of one machine": "cd /wo" + "rk/main",
        "an issue's number": "see is" + "sue #2",
        "unfinished work": "# TO" + "DO later",
        "a conflict that was committed": "<<<<" + "<<< ours",
    }
    assert examples.keys() == FORBIDDEN.keys()
    for what, example in examples.items():
        assert re.search(FORBIDDEN[what], example, re.MULTILINE), what

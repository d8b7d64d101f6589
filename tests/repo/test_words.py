"""The lint of plain words finds its phrases and ignores code; the pages have none."""

from __future__ import annotations

import pytest

from tests.repo.words import faults_of_text


@pytest.mark.parametrize(
    "text",
    [
        "The call goes on.",
        "They are measured by turns.",
        "The server leaves.",
        "It says so in words.",
        "What a model costs is said by the bench.",
        "Over TLS alone, on Linux.",
        "It needs an NVIDIA card.",
        "No memory is to be had, so it starts anew.",
    ],
)
def test_a_phrase_is_found(text: str) -> None:
    (fault, *_) = faults_of_text("page.md", f"First line.\n{text}\n")
    assert fault.startswith("page.md:2: ")
    assert "write plainly (" in fault


def test_plain_words_pass() -> None:
    text = "The call continues. Alternating turns. An agent alone decides what goes. A model card."
    assert list(faults_of_text("page.md", text)) == []

"""Selection of speakable words from the output of a text model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.agent.speakable import MAX_HELD_CHARS, SpeakableText

TEXTS = {
    "It is **very** _late_, isn't it?": "It is very late, isn't it?",
    "# A head\n\n- one\n* two `three`\n1. four": "A head one two three 1. four",
    "See [the page](https://a.example/b_c) at https://x.example/y now": "See the page at now",
    "Here:\n```python\nprint('no')\n```\nThat is it.": "Here: That is it.",
    "Good \U0001f600 morning \U0001f44d\U0001f3fd!": "Good morning !",
    "a snake_case word and 2 * 3": "a snake_case word and 2 3",
    "<b>bold</b> and 3 < 4": "bold and 3 < 4",
    "> quoted\n---\n| a | b |": "quoted a b",
    "No end in sight": "No end in sight",
}


def spoken(text: str, sizes: list[int]) -> str:
    reader, found, at = SpeakableText(), "", 0
    for size in sizes:
        found += reader.feed(text[at : at + size])
        at += size
    return (found + reader.feed(text[at:]) + reader.finish()).strip()


@pytest.mark.parametrize("text", TEXTS)
def test_markup_is_not_spoken_however_the_text_comes(text: str) -> None:
    wanted = " ".join(word for word in TEXTS[text].split() if any(map(str.isalnum, word)))
    for size in (1, 2, 5, 1000):
        assert spoken(text, [size] * len(text)) == wanted


def test_words_come_as_soon_as_they_are_complete() -> None:
    reader = SpeakableText()
    assert [reader.feed(it) for it in ("It", " is", " lat", "e now")] == ["", "It ", "is ", "late "]
    assert reader.finish() == "now "


def test_what_is_held_is_bounded() -> None:
    reader = SpeakableText()
    assert reader.feed("a" * (MAX_HELD_CHARS + 1)) != ""
    assert reader.feed("[" + "b" * MAX_HELD_CHARS) != ""


@given(st.text(alphabet="ab *_`#-[]()<>\n.", max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_no_mark_is_spoken_whatever_comes(text: str, sizes: list[int]) -> None:
    found = spoken(text, sizes)
    assert "`" not in found
    assert all(any(map(str.isalnum, word)) for word in found.split())

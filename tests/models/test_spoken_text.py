"""Text to entries, compared with upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moshi.models.tts import TokenIds, script_to_entries

from antiphon.errors import ProtocolError
from antiphon.models.script import TextEntry, TextReader
from tests.models.test_script import spec_with

SPEC = spec_with()
assert SPEC.lm is not None
VOICED = replace(SPEC, lm=replace(SPEC.lm, config={"conditioners": {"speaker_wavs": {}}}))


class Letters:
    """A tokenizer of one token a letter."""

    def encode(self, text: str) -> list[int]:
        return [4 + ord(letter) % 90 for letter in text]


def as_upstream(text: str, *, voiced: bool) -> list[tuple[list[int], str, int]]:
    found = script_to_entries(Letters(), TokenIds(101), 12.5, [text], multi_speaker=voiced, padding_between=1)  # type: ignore[arg-type]
    return [(entry.tokens, entry.text, entry.padding) for entry in found]


def ours(entries: Sequence[TextEntry]) -> list[tuple[list[int], str, int]]:
    return [(list(entry.tokens), entry.text, entry.padding_frames) for entry in entries]


PIECES = st.sampled_from(
    [
        "a",
        "Bee",
        "it\u2019s",
        "x:y",
        "(no)",
        " ",
        "\n",
        '<break time="1.5s"/>',
        '<break time="2s">',
        "<br>",
        "é",
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.booleans())
def test_words_and_breaks_are_upstreams(text: str, voiced: bool) -> None:
    reader = TextReader(VOICED if voiced else SPEC, Letters().encode)
    assert ours(reader.read(text)) == as_upstream(text, voiced=voiced)


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_a_text_may_come_word_by_word(words: list[str], voiced: bool) -> None:
    reader = TextReader(VOICED if voiced else SPEC, Letters().encode)
    found = [entry for word in words for entry in reader.read(word)]
    assert ours(found) == as_upstream(" ".join(words), voiced=voiced)


def test_a_pause_is_a_frame_to_ten_seconds() -> None:
    reader = TextReader(SPEC, Letters().encode)
    text = '<break time="0.001s"/><break time="999999999s"/>'
    assert reader.read(text) == [TextEntry((), padding_frames=1), TextEntry((), padding_frames=125)]


def test_what_is_no_word_is_refused() -> None:
    reader = TextReader(SPEC, Letters().encode)
    with pytest.raises(ProtocolError, match="a word of 257 tokens, the limit is 256"):
        reader.read("a" * 257)
    with pytest.raises(ProtocolError, match="a word of 5000 letters, the limit is 4096"):
        reader.read("a" * 5000)
    assert TextReader(SPEC, lambda word: []).read("x") == []

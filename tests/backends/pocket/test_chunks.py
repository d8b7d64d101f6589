"""Division of text into chunks equals the package's, however the text arrives."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.backends.chunks import LONGEST_TOKENS, Chunk, Chunker, ChunkWord
from antiphon.backends.pocket.factory import undisturbed

with undisturbed():
    from pocket_tts.models.text_chunking import split_into_best_sentences

TEXTS = (
    "Hello world.",
    "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten. Eleven. Twelve. Thirteen. Fourteen.",
    "This is a rather long sentence, which goes on and on, with commas here and there, so that it has to be "
    "cut into several parts; nobody would say it in one go, or would they? I doubt it. Really! No...",
    'He said "stop it" and left, as if nothing had happened. It cost 3.50 in all, or so they say.',
    "A sentence without any comma that nevertheless takes so many words that nobody could say it in one go",
    "Wait... what? No! Yes? Well, all right then: go on; do it now.",
)


class Letters:
    """A tokenizer for the package: a token a word or mark, as a SentencePiece model would cut them."""

    def __call__(self, text: str) -> torch.Tensor:
        return torch.tensor(self.encode(text))[None]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in text.split():
            ids.append(0)
            ids += [ord(letter) for letter in word]
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(" " if token == 0 else chr(token) for token in ids).strip()


def count(text: str) -> int:
    return len(Letters().encode(text))


def chunked(text: str, chunk_tokens: int, count: Callable[[str], int] = count) -> list[Chunk]:
    chunker = Chunker(count, chunk_tokens)
    chunks = [
        chunk
        for index, word in enumerate(text.split())
        for chunk in chunker.add(ChunkWord(word, count(word), index))
    ]
    return chunks + chunker.end()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("chunk_tokens", [40, 80, 300])
def test_a_text_is_cut_where_the_package_cuts_it(text: str, chunk_tokens: int) -> None:
    wanted = split_into_best_sentences(
        Letters(), text, chunk_tokens, False, remove_semicolons=False, append_terminal_punctuation=False
    )
    assert [chunk.text for chunk in chunked(text, chunk_tokens)] == wanted


GREETING = ("Good", "day.", "How", "are", "you?", "...", "I")
ASKING = ("Good", "day.", "So,", "how", "are", "you", "my", "good", "old")
WORDS = st.sampled_from(["a", "bee", "it,", "end.", "what?", '"No!"', "...", "3.5", "x" * 30, "so;"])


@settings(max_examples=40)
@given(st.lists(WORDS, max_size=80), st.integers(1, 120))
def test_nothing_is_lost_and_nothing_is_too_long(words: list[str], chunk_tokens: int) -> None:
    chunks = chunked(" ".join(words), chunk_tokens)
    assert " ".join(chunk.text for chunk in chunks) == " ".join(words)
    assert [chunk.last for chunk in chunks] == [
        len(" ".join(chunk.text for chunk in chunks[: end + 1]).split()) - 1 for end in range(len(chunks))
    ]
    assert all(count(chunk.text) <= LONGEST_TOKENS for chunk in chunks)


def test_a_closing_quote_stays_with_its_word() -> None:
    """The package puts it before the next sentence."""
    assert chunked('She said: "No!" Then he left.', 20)[0].text == 'She said: "No!"'


def test_a_sentence_without_an_end_is_cut_between_words() -> None:
    chunks = chunked("bee " * 200, 40)
    assert {count(chunk.text) for chunk in chunks} == {LONGEST_TOKENS}
    assert len(chunks) == 4


def test_a_chunk_is_handed_on_as_soon_as_no_other_sentence_can_join_it() -> None:
    chunker = Chunker(count, 16)
    heard = [(text, chunker.add(ChunkWord(text, 5, at))) for at, text in enumerate(GREETING)]
    assert [(text, chunks) for text, chunks in heard if chunks] == [
        ("are", [Chunk("Good day.", 1)]),
        ("I", [Chunk("How are you? ...", 5)]),
    ]
    again = Chunker.from_json(count, 16, json.loads(json.dumps(chunker.to_json())))
    assert again.end() == chunker.end() == [Chunk("I", 6)]
    assert chunker.end() == []


def test_what_comes_after_a_comma_may_be_cut_off_so_the_sentence_is_waited_for() -> None:
    """Whole it would not join, but if it grows too long for any chunk, its first part does."""
    chunker = Chunker(count, 24)
    words = [ChunkWord(text, count(text), at) for at, text in enumerate(ASKING)]
    assert [chunk for word in words for chunk in chunker.add(word)] == []
    assert chunker.end() == [Chunk("Good day. So,", 2), Chunk("how are you my good old", 8)]

"""Collects words into the chunks of text that Pocket-TTS takes one at a time.

The model was trained on single sentences. It takes whole sentences, several together if they are short, by
the rule of ``split_into_best_sentences`` of the package ``pocket_tts``, which gets the whole text at once.
Here words arrive in any portions. A chunk is passed on when no later word can change it, so the speech does
not depend on how fast the text arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

LONGEST_TOKENS: Final = 200
"""Tokens after which a sentence without a comma, or with a later end, is cut between two words."""

_ENDS: Final = ".!?\u2026"
_COMMAS: Final = ",;:"
_CLOSERS: Final = "\"'\u201d\u2019)]\u00bb"


class ChunkWord(NamedTuple):
    """A word as written, the number of its tokens, and its index among the words and pauses of the text."""

    text: str
    tokens: int
    entry: int


class Chunk(NamedTuple):
    """The model's next text; ``last`` is the index of its last entry among all entries."""

    text: str
    last: int


class _Part(NamedTuple):
    """A sentence, or a part of one, that is not split."""

    text: str
    tokens: int
    last: int


@dataclass(slots=True)
class Chunker:
    """Collects one speaker's words into chunks of up to ``chunk_tokens`` tokens.

    ``count`` returns the number of tokens of a text.
    """

    count: Callable[[str], int]
    chunk_tokens: int
    _sentence: list[ChunkWord] = field(default_factory=list)
    _parts: list[_Part] = field(default_factory=list)

    def add(self, word: ChunkWord) -> list[Chunk]:
        """Add a word; returns the chunks that are complete now, usually none."""
        chunks: list[Chunk] = []
        if self._is_ended_by(word):
            chunks = self._end_sentence()
        self._sentence.append(word)
        if self._parts and not self._may_join():
            chunks += self._close()
        return chunks

    def end(self) -> list[Chunk]:
        """End the text, also at a pause; returns the chunks of all kept words."""
        return self._end_sentence() + self._close()

    def to_json(self) -> dict[str, list[Any]]:
        """The kept text, for :meth:`from_json`."""
        return {"sentence": list(self._sentence), "parts": list(self._parts)}

    @classmethod
    def from_json(
        cls, count: Callable[[str], int], chunk_tokens: int, values: Mapping[str, list[Any]]
    ) -> Chunker:
        """A chunker that continues from the result of :meth:`to_json`."""
        words, parts = (ChunkWord(*it) for it in values["sentence"]), (_Part(*it) for it in values["parts"])
        return cls(count, chunk_tokens, list(words), list(parts))

    def _is_ended_by(self, word: ChunkWord) -> bool:
        """Whether the sentence has ended before this word: at its end, or by its length."""
        if not self._sentence:
            return False
        if sum(it.tokens for it in self._sentence) + word.tokens > LONGEST_TOKENS:
            return True
        says_something = any(letter.isalnum() for letter in word.text)
        return says_something and _ends_with(self._sentence[-1].text, _ENDS)

    def _may_join(self) -> bool:
        """Whether the current sentence, or its part up to a comma, may still join the kept text."""
        comma = next((at for at, it in enumerate(self._sentence, 1) if _ends_with(it.text, _COMMAS)), None)
        begun = self._part(self._sentence[:comma]).tokens - 1  # without the full stop it may lack
        return self._kept_tokens + begun <= self.chunk_tokens

    @property
    def _kept_tokens(self) -> int:
        return sum(part.tokens for part in self._parts)

    def _end_sentence(self) -> list[Chunk]:
        """Append the complete text to the kept text; returns the chunks that no longer fit."""
        words, self._sentence = self._sentence, []
        chunks: list[Chunk] = []
        for part in self._cut(words) if words else []:
            if self._kept_tokens + part.tokens > self.chunk_tokens:
                chunks += self._close()
            self._parts.append(part)
        return chunks

    def _cut(self, words: Sequence[ChunkWord]) -> list[_Part]:
        """One sentence, in parts that end with commas where it is too long for one chunk."""
        whole = self._part(words)
        if whole.tokens <= self.chunk_tokens:
            return [whole]
        parts: list[_Part] = []
        start = 0
        for position, word in enumerate(words, start=1):
            if position == len(words) or _ends_with(word.text, _COMMAS):
                parts.append(self._part(words[start:position]))
                start = position
        return parts

    def _part(self, words: Sequence[ChunkWord]) -> _Part:
        text = " ".join(word.text for word in words)
        return _Part(text, self.count(text), words[-1].entry)

    def _close(self) -> list[Chunk]:
        """The kept text as a chunk; none when it is empty."""
        parts, self._parts = self._parts, []
        return [Chunk(" ".join(part.text for part in parts), parts[-1].last)] if parts else []


def _ends_with(word: str, marks: str) -> bool:
    return word.rstrip(_CLOSERS)[-1:] in tuple(marks)

"""Text as a caller sends it to the entries of a script: words, and ``<break time="1.5s"/>``.

An entry with neither tokens nor a pause is what the model cannot say: a word, or another tag of SSML.
The rules are those of ``script_to_entries`` in ``moshi/models/tts.py`` of kyutai-labs/moshi.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.models.script import TextEntry
from antiphon.models.spec import ModelSpec
from antiphon.models.spelling import Speller

MAX_BREAK_S: Final = 10.0
MAX_WORD_TOKENS: Final = 256
"""Twenty seconds of speech: no word."""

PIECE_WORDS: Final = 64
"""Words that are made tokens at once: 1 ms, or 4 where all are spelled anew, of the event loop's time."""

SPEAKER: Final = 1
"""The token before the first word of a model with several voices: the first of them speaks."""

PADDING_BETWEEN: Final = 1
"""Steps between the tokens of a word and the next word: the voice articulates a little better."""

_PARTS: Final = re.compile(
    r'<break\s+time="([0-9]{1,9}(?:\.[0-9]{0,9})?)(m?)s"\s*/?>|\s+'
    r"|(</?(?:speak|voice|prosody|emphasis|say-as|sub|phoneme|audio|mark|lang|break|p|s)(?:\s[^<>]{0,200})?/?>)"
)
_REPLACED: Final = str.maketrans({"\u2019": "'", ":": " ", "(": None, ")": None})


class TextReader:
    """Reads the text of one session, which comes in any portions that do not cut words.

    ``encode`` makes token ids of a word, in the letters of a ``speller`` where there is one.
    """

    def __init__(
        self, spec: ModelSpec, encode: Callable[[str], Sequence[int]], speller: Speller | None = None
    ) -> None:
        """Begin with no text."""
        self._encode, self._speller = encode, speller
        self._frame_rate = spec.mimi.frame_rate
        conditioners = {} if spec.lm is None else spec.lm.config.get("conditioners") or {}
        self._replaced = {} if spec.lm is None else _REPLACED  # only those were trained on text without them
        self._announces = "speaker_wavs" in conditioners

    def read(self, text: str) -> list[TextEntry]:
        """The entries of a piece of text.

        Raises:
            ProtocolError: a word too long to be one.
        """
        return [entry for piece in self.pieces(text) for entry in piece]

    def pieces(self, text: str) -> Iterator[list[TextEntry]]:
        """The entries of a text, read as they are asked for, of some ``PIECE_WORDS`` words at a time.

        Raises:
            ProtocolError: a word too long to be one.
        """
        entries: list[TextEntry] = []
        text, start = text.translate(self._replaced), 0
        for number, part in enumerate(_PARTS.finditer(text), start=1):
            entries += self._word(text[start : part.start()])
            if part[3] is not None:
                entries.append(TextEntry((), part[3]))
            if part[1] is not None:
                seconds = min(float(part[1]) / (1000 if part[2] else 1), MAX_BREAK_S)
                entries.append(TextEntry((), padding_frames=max(1, round(seconds * self._frame_rate))))
            start = part.end()
            if number % PIECE_WORDS == 0 or len(entries) >= PIECE_WORDS:
                yield entries
                entries = []
        yield entries + self._word(text[start:])

    def _word(self, word: str) -> list[TextEntry]:
        if not word:
            return []
        if len(word) > 16 * MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(word)} letters, the limit is {16 * MAX_WORD_TOKENS}")
        tokens = tuple(self._encode(word))
        if self._speller is None or self._speller.is_known(word, tokens):
            return self._spoken(word, tokens)
        words, lost = self._speller.spell(word)
        said = [entry for each in words for entry in self._spoken(each, tuple(self._encode(each)))]
        return said + [TextEntry((), each) for each in lost]

    def _spoken(self, word: str, tokens: tuple[int, ...]) -> list[TextEntry]:
        if len(tokens) > MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(tokens)} tokens, the limit is {MAX_WORD_TOKENS}")
        if not tokens:
            return []
        if self._announces:
            tokens, self._announces = (SPEAKER, *tokens), False
        return [TextEntry(tokens, word, max(0, PADDING_BETWEEN + len(tokens) - 1))]

"""Text as a caller sends it to the entries of a script: words, and ``<break time="1.5s"/>``.

The rules are those of ``script_to_entries`` in ``moshi/models/tts.py`` of kyutai-labs/moshi.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.models.script import TextEntry
from antiphon.models.spec import ModelSpec

MAX_BREAK_S: Final = 10.0
MAX_WORD_TOKENS: Final = 256
"""Twenty seconds of speech: no word."""

PIECE_WORDS: Final = 256
"""Words that are made tokens at once: some 3 ms, in which the event loop does nothing else."""

SPEAKER: Final = 1
"""The token before the first word of a model with several voices: the first of them speaks."""

PADDING_BETWEEN: Final = 1
"""Steps between the tokens of a word and the next word: the voice articulates a little better."""

_PARTS: Final = re.compile(r'<break\s+time="([0-9]{1,9}(?:\.[0-9]{0,9})?)s"\s*/?>|\s+')
_REPLACED: Final = str.maketrans({"\u2019": "'", ":": " ", "(": None, ")": None})


class TextReader:
    """Reads the text of one session, which comes in any portions that do not cut words.

    ``encode`` makes token ids of a word.
    """

    def __init__(self, spec: ModelSpec, encode: Callable[[str], Sequence[int]]) -> None:
        """Begin with no text."""
        self._encode = encode
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
            if part[1] is not None:
                seconds = min(float(part[1]), MAX_BREAK_S)
                entries.append(TextEntry((), padding_frames=max(1, round(seconds * self._frame_rate))))
            start = part.end()
            if number % PIECE_WORDS == 0:
                yield entries
                entries = []
        yield entries + self._word(text[start:])

    def _word(self, word: str) -> list[TextEntry]:
        if not word:
            return []
        if len(word) > 16 * MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(word)} letters, the limit is {16 * MAX_WORD_TOKENS}")
        tokens = tuple(self._encode(word))
        if len(tokens) > MAX_WORD_TOKENS:
            raise ProtocolError(f"a word of {len(tokens)} tokens, the limit is {MAX_WORD_TOKENS}")
        if not tokens:
            return []
        if self._announces:
            tokens, self._announces = (SPEAKER, *tokens), False
        return [TextEntry(tokens, word, max(0, PADDING_BETWEEN + len(tokens) - 1))]

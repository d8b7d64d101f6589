"""Spells a caller's word in the letters of a synthesiser's vocabulary, and finds the rest that it cannot
speak.

A word of the vocabulary stays unchanged. Any other word is respelled: with compatible forms (NFKC), plain
quotes and dashes, English words for figures, and without invisible characters and accents. The model cannot
speak other unknown characters, so the server reports them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import ProtocolError

if TYPE_CHECKING:
    # The module loads sentencepiece, which some benchmarks do not have.
    from antiphon.models.tokenizer import Tokenizer

MAX_NAMED: Final = 16
MAX_NAMED_CHARS: Final = 40
"""Limits on the number of unspoken words that are named, and on their length; all are counted."""

MAX_SPELLED: Final = 64
"""Maximum number of letters of a respelled word, before and after respelling; a longer word would block the
event loop.
"""

MAX_IN_WORDS: Final = 4
"""Maximum number of digits of a number that is spoken as a word; a longer number is spoken digit by digit."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ONES: Final = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS: Final = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_PLAIN: Final = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u2032`\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"')
    | dict.fromkeys("\u2010\u2011", "-")
)
_BREAKS: Final = dict.fromkeys(range(0x2012, 0x2016), " ")
"""Dashes, which separate words."""
_OPERATOR: Final = re.compile(
    r"(?<=[^\W_])[*/\\]+(?=[^\W_]|\()|(?<=\))[*/\\]+(?=[0-9(])"  # 2*3, red/blue, (2)/3
    r"|(?<=[0-9]),(?![0-9]{3}(?![0-9]))(?=[0-9])|(?:(?<=\b0)|(?<=[0-9]{4})),(?=[0-9])"  # 1,5 and 0,125
    r"|(?<![^\W\d_])[-\u2012-\u2015](?=[0-9])"  # -5, 5\u201310
    r"|(?<=[0-9])[:_]+(?=[0-9])"  # 3:1, 1_000
)
"""Characters whose removal would change the meaning of digits, except for thousands separators and word
hyphens."""
_RANGE: Final = re.compile(
    r"([(\['\"]*)(0|[1-9][0-9]{0,3})[-\u2012-\u2015](0|[1-9][0-9]{0,3})([)\]'\".,;:!?%]*)"
)
"""A word of two numbers and a dash is a range if it ascends, as in 5-10. With spaces, in a formula, or
descending as in 10-5, it is a difference.
"""
_TIME: Final = re.compile(r"(?<![0-9:_.,])([01]?[0-9]|2[0-3]):([0-5][0-9])(?![0-9:_]|[.,][0-9])")
"""A time of day, in hours and minutes."""
_NUMBER: Final = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.([0-9]+))?")
_JOINT: Final = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")
_MISREAD: Final = re.compile(rf"[0-9][0-9.,]*[0-9]|{_JOINT.pattern}")
_SMALL: Final = ("<super>", "<sub>", "<fraction>")
"""Compatibility forms that do not apply to numbers: NFKC turns a squared ten into 102."""
_UNNAMED: Final = frozenset("CMPZ")
"""Unicode's categories that can be removed: marks, punctuation, blanks and control characters."""
_NAMED: Final = frozenset("&%@#/\\")
"""Punctuation that is spoken as a word; a separate ``*`` is spoken, but next to a word it is emphasis."""


class Spelling(NamedTuple):
    """The spoken form of a word, as words, and the unspoken rest."""

    words: list[str]
    lost: list[str]


class Unspoken:
    """The unspoken part of a text: ``count`` words, of which the first are kept as ``names``."""

    def __init__(self) -> None:
        """Start without words."""
        self.count = 0
        self.names: list[str] = []

    def add(self, words: Iterable[str]) -> None:
        """Count unspoken words, and store the new ones."""
        for word in words:
            self.count += 1
            name = word[:MAX_NAMED_CHARS]
            if len(self.names) < MAX_NAMED and name not in self.names:
                self.names.append(name)

    def error(self) -> ProtocolError:
        """The error for a text of which no word can be spoken."""
        return ProtocolError(
            f"this model cannot speak any word of this text: {', '.join(map(repr, self.names))}"
        )


class Speller:
    """Spells words with the letters of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Spell for the model of a ``tokenizer``."""
        self._encode, self._unsayable = tokenizer.encode, tokenizer.unsayable
        self._letters = tokenizer.letters
        self._has_figures = not self._letters.isdisjoint("0123456789")
        self._has_joints = "-" in self._letters

    def is_known(self, word: str, tokens: Sequence[int]) -> bool:
        """Whether a word with these tokens is spoken unchanged."""
        misread = _MISREAD.search(word)  # without figures or hyphens a model reads "100" as "10 0"
        is_read = misread is None or (self._has_joints if misread[0] == "-" else self._has_figures)
        if not (is_read and self._unsayable.isdisjoint(tokens)):
            return False
        if not self._has_figures and self._range(word) != word:
            return False
        return all(map(self._is_heard, _OPERATOR.findall(word)))  # a "-" without a token is not spoken

    def spell(self, word: str) -> Spelling:
        """The spoken words for a word as the caller wrote it, and its unspoken rest."""
        if self.is_known(word, self._encode(word)):
            return Spelling([word], [])
        if len(word) > MAX_SPELLED:
            return Spelling([], [word])
        is_compatible = not any(unicodedata.decomposition(it).startswith(_SMALL) for it in word)
        text = (unicodedata.normalize("NFKC", word) if is_compatible else word).translate(_PLAIN)
        if len(text) > MAX_SPELLED:
            return Spelling([], [word])
        text = "".join(letter for letter in text if unicodedata.category(letter) not in ("Cc", "Cf"))
        text = _TIME.sub(self._time, self._range(text))
        lost = [it for it in _OPERATOR.findall(text) if not self._is_heard(it)]
        text = _OPERATOR.sub(self._apart, text).translate(_BREAKS)
        if not self._has_figures:
            text = _NUMBER.sub(self._in_words, text)
        words = []
        for part in (text if self._has_joints else _JOINT.sub(" ", text)).split():
            kept, rest = self._kept(part)
            if self._is_heard(kept):
                words.append(kept)
            if any(unicodedata.category(it)[0] not in _UNNAMED or it in _NAMED for it in rest) or part == "*":
                lost.append(rest)
        return Spelling(words, [it if it in word else word for it in lost])  # as its caller wrote it

    def _is_sayable(self, word: str) -> bool:
        return self._unsayable.isdisjoint(self._encode(word))

    def _is_heard(self, word: str) -> bool:
        """Whether the word can be spoken and has tokens: a vocabulary may lack a comma or a hyphen."""
        return bool(self._encode(word)) and self._is_sayable(word)

    def _apart(self, operator: re.Match[str]) -> str:
        """An operator as a word if digits become words; a blank if it is not spoken."""
        if not self._is_heard(operator[0]):
            return " "
        return operator[0] if self._has_figures else f" {operator[0]} "

    def _range(self, text: str) -> str:
        """A range with "to" in place of the dash; any other word unchanged."""
        found = _RANGE.fullmatch(text)
        if found is None or int(found[2]) >= int(found[3]) or not self._is_heard("to"):
            return text
        return f"{found[1]}{found[2]} to {found[3]}{found[4]}"

    def _time(self, found: re.Match[str]) -> str:
        """A time of day in its spoken form: 10:30 is "10 30", 10:05 "10 oh 5" and 10:00 "10"."""
        hours, minutes = found.groups()
        if self._has_figures:
            return found[0] if self._is_heard(":") else f"{hours} {minutes}"
        if minutes.startswith("0"):
            zero = "oh" if self._is_heard("oh") else "0"
            minutes = "" if minutes == "00" else f"{zero} {minutes[1]}"
        return f"{int(hours)} {minutes}"

    def _in_words(self, found: re.Match[str]) -> str:
        """A number as words if the vocabulary has them, else digit by digit."""
        figures = found[1].replace(",", "")
        point = [] if found[2] is None else ["point", *(_ONES[int(figure)] for figure in found[2])]
        singly = [_ONES[int(figure)] for figure in figures]
        is_number = len(figures) <= MAX_IN_WORDS and (figures == "0" or figures[0] != "0")
        words = number_words(int(figures)).split() if is_number else singly
        return f" {' '.join([*(words if all(map(self._is_sayable, words)) else singly), *point])} "

    def _kept(self, part: str) -> tuple[str, str]:
        """The spoken form of a part, and the rest."""
        if self._is_sayable(part):
            return part, ""
        plain = unicodedata.normalize("NFD", part)
        plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Mn")
        if self._is_sayable(plain):
            return plain, ""
        bare = "".join(it for it in plain if not self._letters.isdisjoint((it, it.lower())))
        if bare and self._is_sayable(bare):
            return bare, "".join(it for it in plain if self._letters.isdisjoint((it, it.lower())))
        return "", part


def number_words(number: int) -> str:
    """A number from 0 to 999,999 in English words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        name, rest = _TENS[number // 10 - 2], number % 10
    else:
        unit, word = (1000, "thousand") if number >= 1000 else (100, "hundred")
        name, rest = f"{number_words(number // unit)} {word}", number % unit
    return f"{name} {number_words(rest)}" if rest else name

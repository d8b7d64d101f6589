"""Finds the words to speak in a text model's reply: without markup, code, list marks, web addresses and
emoji.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

MAX_HELD_CHARS: Final = 4096
"""Maximum number of characters of an incomplete line; a longer one is processed as if it had ended."""

FENCE: Final = "```"

_LINK: Final = re.compile(r"!?\[([^\][]{0,500})\]\([^()\s]{0,2000}\)")
_ADDRESS: Final = re.compile(r"<?\b(?:https?://|www\.)\S+>?")
_MARKS: Final = re.compile(r"^\s{0,12}(?:[-*+\u2022]\s+|#{1,6}\s+|>\s?|[-*_=]{3,}\s*$|\|)")
_SPAN: Final = re.compile(r"\*+|~{2,}|`+|(?<!\w)_+|_+(?!\w)|\|")
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_OPEN: Final = re.compile(r"!?\[[^\][]{0,500}(?:\](?:\([^()\s]{0,2000})?)?$|<[^<>]{0,200}$")
"""The end of a text that may still become a link or a tag."""

_BREAKS: Final = " \u3001\u3002\uff01\uff0c\uff1f"
"""A word is complete before one of these: a space, or its equivalent in Chinese and Japanese."""

_SYMBOLS: Final = frozenset({"So", "Sk", "Cs", "Co", "Cn"})
_JOINERS: Final = frozenset("\u200d\ufe0e\ufe0f\u20e3")


class SpeakableText:
    """Finds the words to speak in one reply, while its text arrives."""

    def __init__(self) -> None:
        """Start a reply."""
        self._line = ""  # unspoken part of the current line
        self._is_code = False
        self._is_begun = False  # part of the line was returned: its marks are removed

    def feed(self, text: str) -> str:
        """Add text; returns the complete words, each followed by a space."""
        *lines, last = (self._line + text).split("\n")
        spoken = [self._whole(line) for line in lines]
        if not self._is_code:  # a link is one word, even with spaces in it
            last = _TAG.sub(" ", _LINK.sub(r"\1", last))
        self._line = last
        if self._is_code or last.lstrip().startswith("`"):
            if len(last) > MAX_HELD_CHARS:
                spoken.append(self._whole(last))
                self._line = ""
            return "".join(spoken)
        held = _OPEN.search(last)
        limit = len(last) if held is None else held.start()
        end = max(last.rfind(it, 0, limit) for it in _BREAKS) + 1
        if len(last) - end > MAX_HELD_CHARS:
            end = len(last)
        part = last[:end]
        if part.strip() and (self._is_begun or _marks_are_over(part)):
            spoken.append(self._plain(part))
            self._line, self._is_begun = last[end:], True
        return "".join(spoken)

    def finish(self) -> str:
        """End the reply; return the rest of the words to speak."""
        line, self._line = self._line, ""
        return self._whole(line)

    def _whole(self, line: str) -> str:
        """The rest of a line."""
        if line.lstrip().startswith(FENCE) and not self._is_begun:
            self._is_code = not self._is_code
            return ""
        said = "" if self._is_code else self._plain(line)
        self._is_begun = False
        return said

    def _plain(self, part: str) -> str:
        if not self._is_begun:
            part = _MARKS.sub("", part)
        part = _TAG.sub(" ", _ADDRESS.sub(" ", _LINK.sub(r"\1", part)))
        part = _SPAN.sub("", part)
        kept = "".join(it for it in part if it not in _JOINERS and unicodedata.category(it) not in _SYMBOLS)
        words = [word for word in kept.split() if any(map(str.isalnum, word))]
        return "".join(f"{word} " for word in words)


def _marks_are_over(part: str) -> bool:
    """Whether enough of a line's start is known to recognise a mark."""
    return len(part.split()) > 1 or part.strip()[0].isalnum()

"""Groups words with their times into segments, and writes segments as the subtitle formats SRT and WebVTT.

A segment ends at a pause, or at the length of a subtitle line, as on the web page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

PAUSE_S: Final = 1.0
MAX_CHARS: Final = 64
WORD_S: Final = 0.4
"""Seconds assumed for a word without an end."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word, with its times in seconds of the recording."""

    text: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a transcript: one or more words."""

    words: tuple[TimedWord, ...]

    @property
    def text(self) -> str:
        """The words with a space between them."""
        return text_of(self.words)

    @property
    def start_s(self) -> float:
        """The start of the segment's first word, in seconds."""
        return self.words[0].start_s

    @property
    def stop_s(self) -> float:
        """The end of the segment's last word, in seconds."""
        return self.words[-1].stop_s


def text_of(words: Iterable[TimedWord]) -> str:
    """The words with a space between them."""
    return " ".join(word.text.strip() for word in words)


def segments_of(words: Sequence[TimedWord]) -> list[Segment]:
    """All words in order, grouped into segments."""
    found: list[list[TimedWord]] = []
    chars = 0
    for word in words:
        is_new = not found or word.start_s - found[-1][-1].stop_s > PAUSE_S
        if is_new or chars + len(word.text) >= MAX_CHARS:
            found.append([])
            chars = 0
        found[-1].append(word)
        chars += len(word.text) + 1
    return [Segment(tuple(line)) for line in found]


def as_srt(segments: Iterable[Segment]) -> str:
    """The segments as a SubRip file."""
    blocks = (
        f"{number}\n{_time(it.start_s, ',')} --> {_time(it.stop_s, ',')}\n{it.text}\n"
        for number, it in enumerate(segments, 1)
    )
    return "\n".join(blocks)


def as_vtt(segments: Iterable[Segment]) -> str:
    """The segments as a WebVTT file."""
    blocks = (  # escaped: the three characters start entities and tags, and ``>`` could form an arrow
        f"{_time(it.start_s, '.')} --> {_time(it.stop_s, '.')}\n{escape(it.text, quote=False)}\n"
        for it in segments
    )
    return "\n".join(("WEBVTT\n", *blocks))


def _time(seconds: float, point: str) -> str:
    ms = max(0, round(1000 * seconds))
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"

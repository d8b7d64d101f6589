"""Composes a recogniser's training data: codes of consecutive questions, their words, and their pauses.

To make the audio decide instead of common phrases, half of the questions continue as another one does, some
more than once, and half are faster or slower: in their codes, which costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lab.train.segments import PACED, PACES, CodeArray, Segment
from lab.train.talker_tokenizer import EPAD, PAD, TalkerTokenizer

FRAME_RATE: Final = 12.5
DELAY_FRAMES: Final = 10
"""Delay of text, 0.8 s: long words have ended by then, so that "sixteen" is not taken for "six"."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 3.0)
"""The minimum pause that each head detects, in seconds."""
UNKNOWN: Final = -100
"""The label of cut-off content at the end of a passage; torch's cross-entropy ignores it."""
PAUSE, NO_PAUSE = 0, 1
"""Classes of a head; upstream reads the probability of the first."""

SPLICED: Final = 0.5
"""Share of the lines that continue as another one does, and share of these that do so again: in any voice,
anything may follow "hello".
"""
RARITY: Final = 1.0
"""Preference for lines with rare words: 0 for none, 1 for a proportional one."""

LabelArray = NDArray[np.int64]


SILENT: Final = 0.2
"""Share of the lines without words, if there are both kinds: they have no transcript."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line: a question, and the frames of its segment in which its words start; outside the domain no
    starts."""

    segment: Segment
    starts: tuple[float, ...]

    @property
    def words(self) -> list[str]:
        """The spoken words of the line."""
        return self.segment.question.split()

    def paced(self, factor: float) -> Line:
        """Return the line ``factor`` times as long."""
        return Line(self.segment.paced(factor), tuple(frame * factor for frame in self.starts))

    def spliced(self, other: Line, own: int, left: int) -> Line:
        """Return the first ``own`` words of this line, at least one, followed by ``other`` without its first
        ``left`` words."""
        first, last = self.segment, other.segment
        cut = int(self.starts[own]) if own < len(self.starts) else first.end + 1
        begin = int(other.starts[left]) if left else last.start
        segment = replace(
            first,
            codes=np.concatenate([first.codes[:, :cut], last.codes[:, begin:]], axis=1),
            end=cut + last.end - begin,
            question=" ".join([*self.words[:own], *other.words[left:]]),
            answer="",
        )
        return Line(
            segment, (*self.starts[:own], *(max(0.0, frame - begin) + cut for frame in other.starts[left:]))
        )


@dataclass(frozen=True, slots=True)
class Room:
    """A background noise: a strip of the noise without speech, and the lines that were spoken in it."""

    strip: CodeArray
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Passage:
    """A passage: codes int16 ``[8, T]``, text tokens int16 ``[T]``, and pause labels int64 ``[heads, T]`` by
    audio frame.

    ``is_wordless`` bool ``[T]``: where the text of the speech would be if it had words. ``words`` are (start
    in frames, word) of all speech in it.
    """

    codes: CodeArray
    text: NDArray[np.int16]
    pauses: LabelArray
    is_wordless: NDArray[np.bool_]
    words: list[tuple[float, str]]


def text_stream(
    words: Sequence[tuple[float, str]], frames: int, tokenizer: TalkerTokenizer
) -> NDArray[np.int16]:
    """Return the text ``[frames]`` of words with start frames: a mark, then the word, both delayed.

    The mark is in the frame before the word. A word without room waits, so that none loses its mark.
    """
    text, previous = np.full(frames, PAD, np.int16), -1
    for start, word in words:
        at = max(previous + 2, round(start) + DELAY_FRAMES)
        for token in tokenizer.encode(word):
            if at >= frames:
                return text
            if text[at - 1] == PAD:
                text[at - 1] = EPAD
            text[at], previous = token, at
            at += 1
    return text


def pause_labels(speech: Sequence[tuple[int, int]], frames: int) -> LabelArray:
    """Return for each head and frame whether a pause of the head's length is in progress.

    ``speech`` are the first and last frames of the speech. A pause that is cut off at the end of the passage
    has a label only if it is long enough already.
    """
    labels = np.full((len(PAUSES_S), frames), NO_PAUSE, np.int64)
    begin = 0
    for first, last in [*speech, (frames, frames)]:
        stop = min(first, frames)
        for head, length_s in enumerate(PAUSES_S):
            if stop - begin >= length_s * FRAME_RATE:
                labels[head, begin:stop] = PAUSE
            elif first >= frames:
                labels[head, begin:stop] = UNKNOWN
        begin = last + 1
    return labels


class PassageComposer:
    """A source of random passages of ``frames`` frames; ``cold`` ``[8, C]`` are the codes of a session's
    first silence."""

    def __init__(
        self,
        rooms: Sequence[Room],
        quiet: Sequence[CodeArray],
        cold: CodeArray,
        tokenizer: TalkerTokenizer,
        frames: int,
    ) -> None:
        self.rooms, self.quiet, self.cold = rooms, quiet, cold
        self.tokenizer, self.frames = tokenizer, frames
        self.shares = shares_by_rarity(rooms)

    def draw(self, rng: np.random.Generator) -> Passage:
        """Draw a passage in one room; one in sixteen has no speech to transcribe."""
        place = int(rng.integers(len(self.rooms)))
        room, shares = self.rooms[place], self.shares[place]
        is_quiet = rng.random() < 1 / 16
        strip = self.quiet[int(rng.integers(len(self.quiet)))] if is_quiet else room.strip
        shift = int(rng.integers(strip.shape[1]))
        codes = np.take(strip, np.arange(shift, shift + self.frames), axis=1, mode="wrap")
        if rng.random() < 0.4:
            silent = int(rng.integers(1, self.cold.shape[1]))
            codes[:, :silent] = self.cold[:, :silent]
        speech: list[tuple[int, int]] = []
        is_wordless = np.zeros(self.frames, np.bool_)
        words: list[tuple[float, str]] = []
        at = int(rng.integers(0, 40))
        while not is_quiet and at < self.frames:
            line = make_line(rng, room, shares)
            segment = line.segment
            codes[:, at : at + segment.codes.shape[1]] = segment.codes[:, : self.frames - at]
            words += [(at + start, word) for start, word in zip(line.starts, line.words, strict=True)]
            speech.append((at + segment.start, at + segment.end))
            if not line.words:
                is_wordless[at + segment.start + DELAY_FRAMES : at + segment.end + DELAY_FRAMES] = True
            at += segment.end + 1 + _gap(rng)
        return Passage(
            codes,
            text_stream(words, self.frames, self.tokenizer),
            pause_labels(speech, self.frames),
            is_wordless,
            words,
        )


def shares_by_rarity(rooms: Sequence[Room]) -> list[NDArray[np.float64]]:
    """Return for each room the probabilities of its lines: the rarer a line's rarest word, the more often it
    is drawn.

    Otherwise a recogniser has "thank you a lot" so rarely that it transcribes something more common. Lines
    without words share ``SILENT`` among them.
    """
    counts = Counter(word for room in rooms for line in room.lines for word in line.words)
    shares = []
    for room in rooms:
        has_words = np.array([bool(line.words) for line in room.lines])
        weights = np.array(
            [min((counts[word] for word in line.words), default=1) ** -RARITY for line in room.lines]
        )
        for some, share in ((has_words, 1 - SILENT), (~has_words, SILENT)):
            weights[some] *= share / max(float(weights[some].sum()), 1e-12)
        shares.append(weights / weights.sum())
    return shares


def make_line(rng: np.random.Generator, room: Room, shares: NDArray[np.float64]) -> Line:
    """Draw a line of the room, or a combination of several lines, at its own pace or another pace.

    A line without words is separate: at its end, the earlier text is over.
    """
    line = room.lines[int(rng.choice(len(room.lines), p=shares))]
    while line.words and rng.random() < SPLICED:
        other = room.lines[int(rng.choice(len(room.lines), p=shares))]
        if not other.words:
            break
        own, left = int(rng.integers(1, len(line.starts) + 1)), int(rng.integers(len(other.starts)))
        line = line.spliced(other, own, left)
    return line.paced(float(rng.uniform(*PACES))) if rng.random() < PACED else line


def _gap(rng: np.random.Generator) -> int:
    """Frames between the end of a question and the segment of the next."""
    low, high = ((0, 5), (5, 25), (25, 80))[rng.choice(3, p=(0.6, 0.25, 0.15))]
    return int(rng.integers(low, high))

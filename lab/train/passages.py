"""Compose what a recogniser is trained on: codes of questions one after another, their words, the pauses.

So that what is heard decides and not what is usually said, half of the questions go on as another one does,
some more than once, and half are said faster or slower: in their codes, which costs nothing.
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
"""Text comes 0.8 s after its sound: long words are over by then, "sixteen" is no longer "six"."""
PAUSES_S: Final = (0.5, 1.0, 2.0, 3.0)
"""Each head tells whether a pause of at least so long has begun."""
UNKNOWN: Final = -100
"""The label of what the end of a passage cuts off; torch's cross-entropy passes over it."""
PAUSE, NO_PAUSE = 0, 1
"""Classes of a head; upstream reads the probability of the first."""

SPLICED: Final = 0.5
"""Of the lines, so many go on as another one does, and of these so many again: in any voice, anything may
follow "hello".
"""
RARITY: Final = 1.0
"""How strongly lines with rare words are preferred: 0 not at all, 1 in proportion."""

LabelArray = NDArray[np.int64]


SILENT: Final = 0.3
"""Of the lines where both kinds are, so many have no words: they are heard, and nothing is written."""


@dataclass(frozen=True, slots=True)
class Line:
    """A question with the frames of its segment in which its words start; outside the domain it has none."""

    segment: Segment
    starts: tuple[float, ...]

    @property
    def words(self) -> list[str]:
        """What is said."""
        return self.segment.question.split()

    def paced(self, factor: float) -> Line:
        """The same, ``factor`` times as long."""
        return Line(self.segment.paced(factor), tuple(frame * factor for frame in self.starts))

    def spliced(self, other: Line, own: int, left: int) -> Line:
        """The first ``own`` words of this, at least one, then ``other`` without its first ``left``."""
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
    """One noise: a strip of it alone, and what is said in it."""

    strip: CodeArray
    lines: tuple[Line, ...]


@dataclass(slots=True)
class Passage:
    """Codes int16 ``[8, T]``, text tokens int16 ``[T]``, pause labels int64 ``[heads, T]`` by audio frame.

    ``is_wordless`` bool ``[T]``: where text of what is said would stand, had it words. ``words`` are (start
    in frames, word) of all that is said in it.
    """

    codes: CodeArray
    text: NDArray[np.int16]
    pauses: LabelArray
    is_wordless: NDArray[np.bool_]
    words: list[tuple[float, str]]


def text_stream(
    words: Sequence[tuple[float, str]], frames: int, tokenizer: TalkerTokenizer
) -> NDArray[np.int16]:
    """The text ``[frames]`` of words that start at some frames: a mark, then the word, both delayed.

    The mark stands in the frame before the word. A word for which there is no room yet waits, so that none
    loses its mark.
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
    """For each head and frame whether a pause of its length is under way.

    ``speech`` are the first and last frames of what is said. A pause that the end of the passage cuts off has
    its label only where it is long enough already.
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
    """Draws passages of ``frames`` frames; ``cold`` ``[8, C]`` are the codes of a session's first silence."""

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
        """A passage in one room; one in sixteen has nobody in it who speaks to us."""
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
    """For each room the probabilities of its lines: the rarer a line's rarest word, the likelier it is drawn.

    Otherwise a recogniser hears "thank you a lot" so seldom that it makes something commoner of it. Lines
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
    """A line of the room, or what some of them make, at its own pace or another.

    What has no words stands by itself: where it ends, what was written before is over.
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

"""One caller's transcript: the recogniser's replies in, words, steps and markers out.

A marker is a place in the caller's audio. It comes back when the model has written down what was said
before it: after the frames up to it and as many more as text lags behind, and not within a word. If the
caller sends no more audio, silence has to stand in for it; that *flush padding* is heard on a copy of the
row's state and of the words begun here, so that the caller's audio goes on later as if nothing had been in
between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from antiphon.models.spec import LMSpec
from antiphon.models.words import SpeechTiming, Word, WordAssembler, WordEnd, WordEvent

MAX_PATIENCE_FRAMES: Final = 12
"""So long, about a second, a marker waits for the end of a word beyond the delay."""

MAX_MARKERS: Final = 1024
"""Markers a caller may have waiting: each costs a few bytes, and more than one a frame means nothing."""


@dataclass(frozen=True, slots=True)
class FrameHeard:
    """Frame ``index`` of the caller's audio, from 1, was heard, with these probabilities of a pause."""

    index: int
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """What was said before the marker ``id`` has been sent."""

    id: int


Event: TypeAlias = WordEvent | FrameHeard | Marked


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marker after so many samples of the caller's audio, which lie in so many frames."""

    id: int
    samples: int
    frames: int


@dataclass(slots=True)
class _Telling:
    """One way of going on: its words, and whether it still repeats words of the padding."""

    words: WordAssembler
    is_repeating: bool = False


class Transcript:
    """The words of one session. Not thread-safe.

    :meth:`hear` takes the replies to the caller's frames (and to the silence before them),
    :meth:`hear_padding` those to the silence after them.
    """

    def __init__(
        self, timing: SpeechTiming, lm: LMSpec, frame_samples: int, decode: Callable[[Sequence[int]], str]
    ) -> None:
        """Begin a transcript; ``decode`` makes text of token ids."""
        self.timing = timing
        self._frame_samples = frame_samples
        self._live = _Telling(WordAssembler(timing, decode, lm.text_padding_id, lm.text_end_padding_id))
        self._padding: _Telling | None = None
        self._marks: deque[_Mark] = deque()
        self._samples = 0  # of the caller's audio that the engine has taken
        self._flushed_samples = 0  # up to here all words were sent
        self._told_until = -1  # words whose first token came by this step were sent during padding

    @property
    def steps(self) -> int:
        """Replies heard, those to the silence before the caller's audio included."""
        return self._live.words.step

    @property
    def frames_heard(self) -> int:
        """Whole frames of the caller's audio that were answered."""
        return max(0, self._frames(self._live.words))

    @property
    def has_marks(self) -> bool:
        """Whether markers wait."""
        return bool(self._marks)

    @property
    def is_full(self) -> bool:
        """Whether one more marker would be too many."""
        return len(self._marks) >= MAX_MARKERS

    def received(self, samples: int) -> None:
        """The engine took so many more samples of the caller's audio; silence begins anew after them."""
        self._samples += samples
        self._padding = None

    def mark(self, marker_id: int) -> list[Event]:
        """A marker after all audio received so far; comes back at once if nothing is new since the last."""
        if not self._marks and self._samples <= self._flushed_samples:
            return [Marked(marker_id)]
        self._marks.append(_Mark(marker_id, self._samples, -(-self._samples // self._frame_samples)))
        return []

    def hear(self, token: int, pauses: tuple[float, ...]) -> list[Event]:
        """The reply to one frame of the caller's, or of the silence before."""
        self._padding = None
        told = [event for event in self._live.words.feed(token) if self._is_news(event, self._live)]
        heard = self.frames_heard
        steps = [FrameHeard(heard, pauses)] if pauses and heard else []
        return [*steps, *told, *self._complete(self._live.words)]

    def padding_frames_wanted(self) -> int:
        """How many frames of silence the markers need, all audio having been answered; 0: none.

        The first of them ends the frame that the audio left unfinished, if it did.
        """
        if not self._marks:
            return 0
        heard = self._frames((self._padding or self._live).words)
        return max(1, self._marks[-1].frames + self.timing.delay_frames - heard)

    def hear_padding(self, token: int) -> list[Event]:
        """The reply to one frame of silence after the caller's audio."""
        if self._padding is None:
            self._padding = _Telling(self._live.words.fork(), self._live.is_repeating)
        padded = self._padding
        told = padded.words.feed(token)
        if self._marks and self._is_due(self._marks[-1], padded.words):
            told += padded.words.finish(self._samples / self._frame_samples * self.timing.frame_s)
        news = [event for event in told if self._is_news(event, padded)]
        self._told_until = max([self._told_until, *(it.step for it in news if isinstance(it, Word))])
        self._live.is_repeating |= bool(news)
        return [*news, *self._complete(padded.words)]

    def _is_news(self, event: WordEvent, telling: _Telling) -> bool:
        """Whether this is new, given what flush padding has already produced."""
        if isinstance(event, WordEnd):
            return not telling.is_repeating
        if event.step <= self._told_until:
            return False
        telling.is_repeating = False
        return True

    def _frames(self, words: WordAssembler) -> int:
        """Frames answered since the silence before the caller's audio; negative within it."""
        return words.step - self.timing.prefix_frames

    def _is_due(self, mark: _Mark, words: WordAssembler) -> bool:
        """Whether all frames before a marker, and those after which their text has come, are answered."""
        over = self._frames(words) - mark.frames - self.timing.delay_frames
        return over >= 0 and (not words.is_in_word or over >= MAX_PATIENCE_FRAMES)

    def _complete(self, words: WordAssembler) -> list[Event]:
        done: list[Event] = []
        while self._marks and self._is_due(self._marks[0], words):
            mark = self._marks.popleft()
            self._flushed_samples = mark.samples
            done.append(Marked(mark.id))
        return done

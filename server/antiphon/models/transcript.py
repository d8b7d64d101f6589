"""One caller's transcript: converts the recogniser's replies to words, steps and markers.

A Kyutai STT model outputs one text token a frame. Padding (3) stands for no text; the end of padding (0) is a
boundary between words; every other token is a piece of a word. Text lags behind the audio by the delay of the
model's training. The rules for word boundaries follow ``moshi::asr::State`` (rust/moshi-core/src/asr.rs of
kyutai-labs/moshi); the delay and the silence before the audio are ``stt_config`` of the checkpoint.

A marker is a position in the caller's audio. The server returns it when the words before it are transcribed.
This is after the marker's frame plus the delay of the text, and not within a word. If the caller sends no
more audio, silence replaces the missing audio. This *flush padding* runs on a copy of the row's state and of
the started words, so that later audio continues as if there had been no silence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from antiphon.errors import CheckpointFormatError
from antiphon.models.spec import LMSpec, ModelSpec
from antiphon.models.strict import check_type

MAX_DELAY_S: Final = 60.0
"""Limit on the delay and on the silence before the audio: a larger number is a mistake."""

PREFIX_FRAMES: Final = 2
"""Frames of silence before the audio if the checkpoint states none: the model reads the second of them.

With only one frame, ``tiny-stt`` transcribes nothing of 33 of 112 natural questions that begin with the
audio; with two frames, something of each.
"""

MAX_WORD_TOKENS: Final = 256
"""Longest word in tokens, twenty seconds without a boundary; it is cut there."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that began at ``start_s`` of the caller's audio. Its first token was the output of step
    ``step``.

    The word was complete at ``end_s`` of the audio, a frame after its last token.
    """

    text: str
    start_s: float
    step: int
    end_s: float


@dataclass(frozen=True, slots=True)
class WordEnd:
    """The last word ended at ``stop_s`` of the caller's audio."""

    stop_s: float


WordEvent: TypeAlias = Word | WordEnd


@dataclass(frozen=True, slots=True)
class SpeechTiming:
    """The timing of a recogniser: the delay of its text, and the silence before the caller's audio.

    A session begins with ``prefix_frames`` of silence that the caller has not sent. There is at least one
    such frame, because the model ignores the first frame of a session: its input there is the initial tokens,
    as in upstream's ``LMGen``. ``delay_s`` is the delay of text against audio.
    """

    frame_s: float
    delay_s: float
    prefix_frames: int

    @classmethod
    def of(cls, spec: ModelSpec) -> SpeechTiming:
        """The timing in a checkpoint's ``stt_config``, or no delay and ``PREFIX_FRAMES`` of silence.

        Raises:
            CheckpointFormatError: a time is not a number from 0 to ``MAX_DELAY_S``.
        """
        frame_s = spec.frame_ms / 1000.0
        config = spec.generation.get("stt_config", {})
        times_s = []
        unstated = {"audio_delay_seconds": 0.0, "audio_silence_prefix_seconds": PREFIX_FRAMES * frame_s}
        for key, default in unstated.items():
            value = config.get(key, default)
            check_type(value, float, f"stt_config.{key}")
            if not 0 <= value <= MAX_DELAY_S:
                raise CheckpointFormatError(f"stt_config.{key} is {value}, it must be 0 to {MAX_DELAY_S:g}")
            times_s.append(float(value))
        delay_s, prefix_s = times_s
        return cls(frame_s, delay_s, max(1, _frames_up(prefix_s, frame_s)))

    @property
    def delay_frames(self) -> int:
        """Number of frames until the text of a frame is complete."""
        return _frames_up(self.delay_s, self.frame_s)

    @property
    def first_step(self) -> int:
        """The first step, counted from 0 with the silence, whose token can belong to the caller's audio."""
        return self.prefix_frames - 2 + math.floor(self.delay_s / self.frame_s + 1e-6)

    def time_s(self, step: int) -> float:
        """The time, in the caller's audio, of a word boundary that the model outputs at ``step``; rounded to
        milliseconds.

        The model was trained to output at position p the text of frame p, given the audio before frame p. At
        step s it has the caller's frame s - prefix, so it is at position s - prefix + 1, and a boundary there
        is at the end of that frame.
        """
        return max(0.0, round((step - self.prefix_frames + 2) * self.frame_s - self.delay_s, 3))


def _frames_up(seconds: float, frame_s: float) -> int:
    return math.ceil(seconds / frame_s - 1e-6)


@dataclass(slots=True)
class WordAssembler:
    """Joins the tokens of one session into words. ``decode`` turns token ids into text.

    ``step`` is the next step, counted from 0 with the silence. :meth:`fork` makes an independent copy.
    """

    timing: SpeechTiming
    decode: Callable[[Sequence[int]], str]
    padding_id: int = 3
    boundary_id: int = 0
    step: int = 0
    _tokens: list[int] = field(default_factory=list)
    _first_step: int = 0
    _boundary_s: float = 0.0
    _is_unended: bool = False

    @property
    def is_in_word(self) -> bool:
        """Whether a word has started and is not complete."""
        return bool(self._tokens)

    @property
    def now_s(self) -> float:
        """The position of the last step in the caller's audio."""
        return self.timing.time_s(self.step - 1)

    def fork(self) -> WordAssembler:
        """An independent copy of the assembler."""
        return replace(self, _tokens=list(self._tokens))

    def feed(self, token: int) -> list[WordEvent]:
        """Add the next step's token; returns the words and word ends that it completes, in order."""
        events: list[WordEvent] = []
        self.step += 1
        if self.step <= self.timing.first_step:
            return events
        is_boundary = token == self.boundary_id
        if not is_boundary and token != self.padding_id:
            if not self._tokens:
                self._first_step = self.step - 1
            self._tokens.append(token)
        if is_boundary or token == self.padding_id or len(self._tokens) >= MAX_WORD_TOKENS:
            events += self._tell()
        if is_boundary:
            events += self._end(self.now_s)
            self._boundary_s = self.now_s
        return events

    def finish(self, end_s: float) -> list[WordEvent]:
        """End the transcript at ``end_s`` of the audio; return the remaining words and word ends."""
        return [*self._tell(), *self._end(min(self.now_s, end_s))]

    def _tell(self) -> list[WordEvent]:
        if not self._tokens:
            return []
        text = self.decode(self._tokens)
        self._tokens = []
        if not text:
            return []
        self._is_unended = True
        return [Word(text, self._boundary_s, self._first_step, max(self._boundary_s, self.now_s))]

    def _end(self, stop_s: float) -> list[WordEvent]:
        if not self._is_unended:
            return []
        self._is_unended = False
        return [WordEnd(max(stop_s, self._boundary_s))]


MAX_PATIENCE_FRAMES: Final = 12
"""Frames, about a second, that a marker waits for the end of a word, in addition to the text's delay."""

MAX_MARKERS: Final = 1024
"""Maximum number of waiting markers of a caller: each costs a few bytes, and one per frame is enough."""


@dataclass(frozen=True, slots=True)
class FrameHeard:
    """Frame ``index`` of the caller's audio (the first is 1) was processed; ``pauses`` are its probabilities
    of a pause.
    """

    index: int
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """All words before the marker ``id`` have been sent."""

    id: int


Event: TypeAlias = WordEvent | FrameHeard | Marked


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marker after a number of samples of the caller's audio, and the frames that contain them."""

    id: int
    samples: int
    frames: int


@dataclass(slots=True)
class _Telling:
    """One continuation: its words, and whether it still repeats words of the padding."""

    words: WordAssembler
    is_repeating: bool = False


class Transcript:
    """The transcript of one session, made from the recogniser's replies. Not thread-safe.

    :meth:`hear` takes the replies to the caller's frames and to the silence before them; :meth:`feed_padding`
    takes the replies to the silence after them.
    """

    def __init__(
        self, timing: SpeechTiming, lm: LMSpec, frame_samples: int, decode: Callable[[Sequence[int]], str]
    ) -> None:
        """Begin a transcript; ``decode`` converts token ids to text."""
        self.timing = timing
        self._frame_samples = frame_samples
        self._live = _Telling(WordAssembler(timing, decode, lm.text_padding_id, lm.text_end_padding_id))
        self._padding: _Telling | None = None
        self._marks: deque[_Mark] = deque()
        self._samples = 0  # of the caller's audio that the engine has taken
        self._flushed_samples = 0  # all words before this sample were sent
        self._told_until = -1  # words with first tokens up to this step were sent during padding

    @property
    def steps(self) -> int:
        """Number of replies so far, including replies to the silence before the caller's audio."""
        return self._live.words.step

    @property
    def frames_heard(self) -> int:
        """Number of whole frames of the caller's audio that were answered."""
        return max(0, self._frames(self._live.words))

    @property
    def has_marks(self) -> bool:
        """Whether any marker is pending."""
        return bool(self._marks)

    @property
    def is_full(self) -> bool:
        """Whether the limit of markers is reached."""
        return len(self._marks) >= MAX_MARKERS

    def received(self, samples: int) -> None:
        """Count ``samples`` more of the caller's audio, which the engine has taken; flush padding restarts
        after them.
        """
        self._samples += samples
        self._padding = None

    def mark(self, marker_id: int) -> list[Event]:
        """Add a marker after all audio so far; the marker returns at once if no audio has arrived since the
        last marker.
        """
        if not self._marks and self._samples <= self._flushed_samples:
            return [Marked(marker_id)]
        self._marks.append(_Mark(marker_id, self._samples, -(-self._samples // self._frame_samples)))
        return []

    def hear(self, token: int, pauses: tuple[float, ...]) -> list[Event]:
        """Process the reply to one frame of the caller's audio, or of the silence before it."""
        self._padding = None
        told = [event for event in self._live.words.feed(token) if self._is_news(event, self._live)]
        heard = self.frames_heard
        steps = [FrameHeard(heard, pauses)] if pauses and heard else []
        return [*steps, *told, *self._complete(self._live.words)]

    def padding_frames_wanted(self) -> int:
        """Number of frames of silence that the markers need after all audio is answered; may be 0.

        The first of them completes an unfinished frame of the audio.
        """
        if not self._marks:
            return 0
        heard = self._frames((self._padding or self._live).words)
        return max(1, self._marks[-1].frames + self.timing.delay_frames - heard)

    def feed_padding(self, token: int) -> list[Event]:
        """Process the reply to one frame of silence after the caller's audio."""
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
        """Whether an event is new, compared with the output of the flush padding so far."""
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
        """Whether all frames before a marker, and those of the text's delay, are answered."""
        over = self._frames(words) - mark.frames - self.timing.delay_frames
        return over >= 0 and (not words.is_in_word or over >= MAX_PATIENCE_FRAMES)

    def _complete(self, words: WordAssembler) -> list[Event]:
        done: list[Event] = []
        while self._marks and self._is_due(self._marks[0], words):
            mark = self._marks.popleft()
            self._flushed_samples = mark.samples
            done.append(Marked(mark.id))
        return done

"""Text tokens of a speech recogniser to words with times.

A Kyutai STT model says one text token a frame. Padding (3) means nothing yet; the end of padding (0) is a
boundary between words; everything else is a piece of a word. Text lags the audio by a delay the model was
trained with. Which token ends what follows ``moshi::asr::State`` (rust/moshi-core/src/asr.rs of
kyutai-labs/moshi); the delay and the silence before the audio are ``stt_config`` of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from antiphon.errors import CheckpointFormatError
from antiphon.models.spec import ModelSpec
from antiphon.models.strict import check_type

MAX_DELAY_S: Final = 60.0
"""No delay and no silence before the audio is longer than this: a larger number is a mistake."""

PREFIX_FRAMES: Final = 2
"""Frames of silence before the audio of a checkpoint that states none: the model hears the second of them.

Without that one, ``tiny-stt`` wrote nothing of 51 of 120 questions that began with the audio; with it, of 3.
"""

MAX_WORD_TOKENS: Final = 256
"""Twenty seconds without a boundary: the word is cut there."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that began at ``start_s`` of the caller's audio; its first token came at ``step``.

    It was complete at ``end_s`` of the audio, a frame after its last token.
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
    """When a recogniser's tokens were said.

    A session begins with ``prefix_frames`` of silence that no caller sent. There is one at least: the model
    does not hear the first frame of a session (its input is the initial tokens, as in upstream's ``LMGen``),
    so it must not be the caller's. ``delay_s`` is how far text lags audio.
    """

    frame_s: float
    delay_s: float
    prefix_frames: int

    @classmethod
    def of(cls, spec: ModelSpec) -> SpeechTiming:
        """The timing that a checkpoint's ``stt_config`` states, or no delay and ``PREFIX_FRAMES`` of silence.

        Raises:
            CheckpointFormatError: a time that is no number from 0 to ``MAX_DELAY_S``.
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
        """Frames after which what was said in one has been written."""
        return _frames_up(self.delay_s, self.frame_s)

    @property
    def first_step(self) -> int:
        """The first step, counted from 0 with the silence, whose token can be about the caller's audio."""
        return self.prefix_frames - 2 + math.floor(self.delay_s / self.frame_s + 1e-6)

    def time_s(self, step: int) -> float:
        """The place in the caller's audio of a boundary written at ``step``, to the millisecond.

        The model was trained to say at position p what its text has at frame p, with the audio before
        frame p heard. At step s it has heard the caller's frame s - prefix, so it is at position
        s - prefix + 1, and a boundary there lies at the end of that frame.
        """
        return max(0.0, round((step - self.prefix_frames + 2) * self.frame_s - self.delay_s, 3))


def _frames_up(seconds: float, frame_s: float) -> int:
    return math.ceil(seconds / frame_s - 1e-6)


@dataclass(slots=True)
class WordAssembler:
    """Joins the tokens of one session to words. ``decode`` makes text of token ids.

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
        """Whether a word has begun and is not complete."""
        return bool(self._tokens)

    @property
    def now_s(self) -> float:
        """The place in the caller's audio that the last step was about."""
        return self.timing.time_s(self.step - 1)

    def fork(self) -> WordAssembler:
        """A copy that goes on by itself."""
        return replace(self, _tokens=list(self._tokens))

    def feed(self, token: int) -> list[WordEvent]:
        """The next step's token; returns what it made certain, in order."""
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
        """Nothing more is said, the audio ended at ``end_s``: tell what is left."""
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

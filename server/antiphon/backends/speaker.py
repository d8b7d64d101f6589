"""A row of Pocket-TTS without the model's tensors: its remaining text, current chunk, and noise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from antiphon.backends.base import NO_TOKEN, FloatArray, TextEntry
from antiphon.backends.chunks import Chunk, Chunker, ChunkWord
from antiphon.errors import UnsupportedError
from antiphon.models.philox import random_words

STREAM: Final = 1
"""The stream of noise for the model's voice: see docs/sampling.md."""


def normal(seed: int, step: int, width: int) -> FloatArray:
    """Standard normal noise, float32 ``[width]``: Box and Muller (1958), two words of Philox per pair."""
    count = width + width % 2
    words = random_words(
        np.array([seed], np.uint64),
        np.array([step], np.int64),
        STREAM,
        np.arange(count, dtype=np.int64)[None],
    )
    uniform = (words[0].reshape(2, -1) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
    pairs: FloatArray = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).astype(np.float32)
    return pairs[:width]


SPARE_CHUNKS: Final = 2
"""Chunks that a row holds before it stops accepting words; further words wait in the session."""
FADE_S: Final = 0.005
"""The first step of a fresh decoder gives short audio, which is faded in."""
FIRST_END: Final = 6
"""The first frame at which the model may end a chunk; earlier signs of the end are ignored."""


class Pause(NamedTuple):
    """Frames of silence; ``last`` is the entry that requested them."""

    frames: int
    last: int


class Silence(NamedTuple):
    """A frame of a pause, and the index of the entry that begins with it, or ``NO_TOKEN``."""

    begun: int


@dataclass(slots=True)
class Speech:
    """A chunk of text in progress: ``step`` counts the frames made so far, of at most ``max_frames``.

    ``tail_frames`` more frames follow the end of the speech. ``index`` numbers the chunk's last entry.
    """

    max_frames: int
    tail_frames: int
    index: int
    step: int = 0
    end_step: int | None = None

    def ends(self, *, is_over: bool) -> bool:
        """Whether the speech ends before the next frame, where ``is_over`` is the model's signal that speech
        is over.
        """
        if is_over and self.end_step is None and self.step >= FIRST_END:
            self.end_step = self.step
        return self.end_step is not None and self.step >= self.end_step + self.tail_frames


STEPS: Final = ("max_frames", "tail_frames", "index", "step", "end_step")
"""The fields of a speech in :meth:`SpokenRow.to_json`."""

Open: TypeAlias = Callable[[Chunk], Speech | None]
"""Reads a chunk into the model; returns None for a chunk without speakable text."""


@dataclass(slots=True)
class SpokenRow:
    """The remaining text of a row. ``draws`` counts the frames with noise."""

    chunker: Chunker
    draws: int = 0
    is_complete: bool = False
    speech: Speech | None = None
    _taken: int = 0
    _waiting: deque[Chunk | Pause] = field(default_factory=deque)
    _pause: Pause | None = None

    def to_json(self) -> dict[str, Any]:
        """The row as plain values, for :meth:`load`."""
        values: dict[str, Any] = {"draws": self.draws, "is_complete": self.is_complete, "taken": self._taken}
        values["chunker"] = self.chunker.to_json()
        values["waiting"] = [[isinstance(it, Pause), *it] for it in self._waiting]
        values["pause"] = self._pause
        if self.speech is not None:
            values["utterance"] = {name: getattr(self.speech, name) for name in STEPS}
        return values

    def load(self, values: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`to_json`, with this row's own counter of tokens.

        Raises:
            ArithmeticError, LookupError, TypeError, ValueError: the values are not from :meth:`to_json`.
        """
        counter = self.chunker
        self.chunker = Chunker.from_json(counter.count, counter.chunk_tokens, values["chunker"])
        self._waiting = deque(Pause(*it) if is_pause else Chunk(*it) for is_pause, *it in values["waiting"])
        self._pause = Pause(*values["pause"]) if values["pause"] else None
        self.draws, self._taken = int(values["draws"]), int(values["taken"])
        self.is_complete = bool(values["is_complete"])
        self.speech = None
        if "utterance" in values:
            frames, tail, index, step, end = (values["utterance"][name] for name in STEPS)
            self.speech = Speech(int(frames), int(tail), int(index), int(step), end and int(end))

    def check(self, longest_frames: int) -> None:
        """Raise UnsupportedError if the numbers of the current speech contradict each other or its limit."""
        said = self.speech
        if said is not None and not 0 <= said.step < said.max_frames <= longest_frames:
            raise UnsupportedError(
                f"this snapshot is damaged: frame {said.step} of {said.max_frames}, of at most "
                f"{longest_frames}"
            )

    @property
    def has_room(self) -> bool:
        """Whether the row accepts more words."""
        return len(self._waiting) < SPARE_CHUNKS

    @property
    def is_busy(self) -> bool:
        """Whether the row has a chunk, a speech or a pause left, and so needs no new words."""
        return bool(self._waiting) or self.speech is not None or self._pause is not None

    @property
    def is_finished(self) -> bool:
        """Whether everything has been spoken."""
        return self.is_complete and not self.is_busy

    @property
    def current_speech(self) -> Speech | None:
        """The speech that the next frame belongs to."""
        return self.speech if self._pause is None else None

    def may_begin(self, offered: tuple[TextEntry, ...]) -> bool:
        """Whether the next frame may start a speech: a chunk is next, or words may form one."""
        if self.speech is not None or self._pause is not None:
            return False
        return isinstance(self._waiting[0], Chunk) if self._waiting else bool(offered)

    def add(self, entries: tuple[TextEntry, ...]) -> None:
        """Add words, pauses and the end. Input after the end is ignored."""
        for entry in entries:
            if self.is_complete:
                return
            if entry.tokens:
                self._waiting += self.chunker.add(ChunkWord(entry.text, len(entry.tokens), self._taken))
            elif entry.padding_frames:
                self._waiting += [*self.chunker.end(), Pause(entry.padding_frames, self._taken)]
            self._taken += bool(entry.tokens or entry.padding_frames)
            if entry.is_last:
                self._waiting += self.chunker.end()
                self.is_complete = True

    def act(self, open_chunk: Open) -> Speech | Silence | None:
        """The content of the next frame; opens a due chunk first. None if there is no frame yet."""
        while self.is_busy:
            if self._pause is not None:
                pause, left = self._pause, self._pause.frames - 1
                self._pause = Pause(left, NO_TOKEN) if left else None
                return Silence(pause.last)
            if self.speech is not None:
                return self.speech
            what = self._waiting.popleft()
            if isinstance(what, Pause):
                self._pause = what
            else:
                self.speech = open_chunk(what)
        return None

    def noise(self, seed: int, width: int) -> FloatArray:
        """The noise of the next frame, float32 ``[width]``."""
        self.draws += 1
        return normal(seed, self.draws - 1, width)

    def count_frame(self, said: Speech) -> int:
        """Count a frame; returns the index of the entry that starts with it, or ``NO_TOKEN``."""
        begun = said.index if said.step == 0 else NO_TOKEN
        said.step += 1
        if said.step == said.max_frames:
            self.speech = None
        return begun


def fade_in(pcm: FloatArray, sample_rate: int) -> None:
    """Fade the first frame of a speech, float32 ``[samples]``, in place."""
    fade = min(len(pcm), int(sample_rate * FADE_S))
    pcm[:fade] *= np.linspace(0, 1, fade, dtype=np.float32)

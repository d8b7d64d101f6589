"""Runs a talker and a recogniser in this process at full speed; tracks are the input, sound and words the
output.

The talker's output is placed at its earliest audible time: one frame after the frame that it answers. The
times are those of the model; a server and a network add to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from antiphon.arrays import FloatArray
from antiphon.backends.base import StepInputs
from antiphon.backends.registry import AUTO, make_backend
from antiphon.models.catalog import load_checkpoint
from antiphon.models.sampling import SamplingParameters
from antiphon.models.transcript import SpeechTiming, Word, WordAssembler

FRAME_SAMPLES: Final = 1920
FRAME_S: Final = 0.08


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: sound ``[samples]`` parallel to a track, and words with their starts in seconds."""

    pcm: FloatArray
    words: tuple[tuple[float, str], ...]

    def text(self, start_s: float = 0.0, stop_s: float = np.inf) -> str:
        """Return the words between two times as text."""
        return " ".join(word for at_s, word in self.words if start_s <= at_s < stop_s)


class Talker:
    """A talker with a number of rows; text is sampled greedily, whatever its folder's settings."""

    def __init__(self, model: str, backend: str | None = None, rows: int = 8) -> None:
        """Load a built-in model or a folder.

        Raises:
            AntiphonError: there is no such model, or it cannot be run here.
            ValueError: it has no words.
        """
        checkpoint = load_checkpoint(model)
        tokenizer = checkpoint.text_tokenizer()
        if tokenizer is None:
            raise ValueError(f"{model} has no tokenizer")
        self._tokenizer, self._rows = tokenizer, rows
        self._backend = make_backend(backend or AUTO, checkpoint, slots=rows)
        self._sampling = SamplingParameters.from_generation(checkpoint.generation)

    def listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        """Return the reply to each track; tracks are padded to whole frames."""
        replies: list[Reply] = []
        for start in range(0, len(tracks), self._rows):
            replies += self._listen(tracks[start : start + self._rows])
        return replies

    def _listen(self, tracks: Sequence[FloatArray]) -> list[Reply]:
        heard = [np.pad(one, (0, -one.size % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES) for one in tracks]
        sound = [np.zeros(((len(one) + 1), FRAME_SAMPLES), np.float32) for one in heard]
        words: list[list[tuple[float, str]]] = [[] for _ in heard]
        for row in range(len(heard)):
            self._backend.set_parameters(row, replace(self._sampling, text_temperature=0.0, audio_seed=row))
        for frame in range(max(len(one) for one in heard)):
            rows = [row for row, one in enumerate(heard) if frame < len(one)]
            first = np.full(len(rows), frame == 0)
            pcm = np.stack([heard[row][frame] for row in rows]).astype(np.float32)
            outputs = self._backend.step(StepInputs(np.array(rows, np.int32), first, pcm))
            assert outputs.text_tokens is not None
            assert outputs.pcm is not None
            for place, row in enumerate(rows):
                if outputs.emitted[place]:
                    sound[row][frame + 1] = outputs.pcm[place]
                    word = self._tokenizer.piece(int(outputs.text_tokens[place])).strip()
                    if word:
                        words[row].append(((frame + 1) * FRAME_S, word))
        return [
            Reply(played.reshape(-1)[: one.size], tuple(said))
            for played, one, said in zip(sound, tracks, words, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Written:
    """A transcript: words, each with its start in seconds; ``pauses [frames, heads]`` by frame of the
    track."""

    words: tuple[tuple[float, str], ...]
    pauses: FloatArray

    @property
    def text(self) -> str:
        """The words of the transcript as text."""
        return " ".join(word for _, word in self.words)


class Recogniser:
    """A recogniser with a number of rows; ``prefix_frames`` of silence precede a track, by default the
    model's own number."""

    def __init__(
        self, model: str, backend: str | None = None, rows: int = 8, prefix_frames: int | None = None
    ) -> None:
        """Load a built-in model or a folder.

        Raises:
            AntiphonError: there is no such model, or it cannot be run here.
            ValueError: it has no words.
        """
        checkpoint = load_checkpoint(model)
        tokenizer = checkpoint.text_tokenizer()
        if tokenizer is None:
            raise ValueError(f"{model} has no tokenizer")
        self._tokenizer, self._rows = tokenizer, rows
        timing = SpeechTiming.of(checkpoint.spec)
        self._timing = timing if prefix_frames is None else replace(timing, prefix_frames=prefix_frames)
        self._backend = make_backend(backend or AUTO, checkpoint, slots=rows)
        sampling = SamplingParameters.from_generation(checkpoint.generation)
        for row in range(rows):
            self._backend.set_parameters(row, sampling)

    def listen(self, tracks: Sequence[FloatArray]) -> list[Written]:
        """Return the transcript of each track, which is followed by silence as long as the text's delay."""
        written: list[Written] = []
        for start in range(0, len(tracks), self._rows):
            written += self._listen(tracks[start : start + self._rows])
        return written

    def _listen(self, tracks: Sequence[FloatArray]) -> list[Written]:
        timing = self._timing
        around = (timing.prefix_frames * FRAME_SAMPLES, (timing.delay_frames + 1) * FRAME_SAMPLES)
        heard = [
            np.pad(one, (around[0], around[1] - one.size % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
            for one in tracks
        ]
        writers = [WordAssembler(timing, self._tokenizer.decode) for _ in tracks]
        words: list[list[tuple[float, str]]] = [[] for _ in tracks]
        pauses: list[list[FloatArray]] = [[] for _ in tracks]
        for frame in range(max(len(one) for one in heard)):
            rows = [row for row, one in enumerate(heard) if frame < len(one)]
            first = np.full(len(rows), frame == 0)
            pcm = np.stack([heard[row][frame] for row in rows]).astype(np.float32)
            outputs = self._backend.step(StepInputs(np.array(rows, np.int32), first, pcm))
            assert outputs.text_tokens is not None
            for place, row in enumerate(rows):
                events = writers[row].feed(int(outputs.text_tokens[place]))
                words[row] += [(event.start_s, event.text) for event in events if isinstance(event, Word)]
                if outputs.vad is not None and frame >= timing.prefix_frames:
                    pauses[row].append(outputs.vad[place])
        for row, one in enumerate(heard):
            events = writers[row].finish(len(one) * FRAME_S)
            words[row] += [(event.start_s, event.text) for event in events if isinstance(event, Word)]
        return [
            Written(tuple(said), np.array(likely, np.float32).reshape(len(likely), -1))
            for said, likely in zip(words, pauses, strict=True)
        ]

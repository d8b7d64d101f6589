"""Time, memory and disk: what a smaller model is made for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from antiphon.backends.base import Backend, FloatArray, StepInputs
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.script import TextEntry
from antiphon.models.spec import PipelineKind
from antiphon_quantize.gate_measures import Measure

WARM_UP_TICKS = 5


WORD = TextEntry((5,), "word")


class Ticker:
    """Steps one row of a backend through a recording, round and round; one of tts says a word."""

    def __init__(self, backend: Backend, pcm: FloatArray, clock: Callable[[], float]) -> None:
        """``pcm`` is ``[N]``, whole frames; ``clock`` tells seconds."""
        self._backend, self._clock, self._ticks = backend, clock, 0
        self._is_told = backend.info.kind is PipelineKind.TTS
        self._frames = pcm.reshape(-1, backend.info.spec.frame_samples)

    def tick_ms(self) -> float:
        """Milliseconds of one step."""
        frame = self._frames[self._ticks % len(self._frames)][None]
        row, is_first = np.zeros(1, np.int32), np.array([self._ticks == 0])
        inputs = StepInputs(row, is_first, frame)
        if self._is_told:
            inputs = StepInputs(row, is_first, None, ((WORD,),))
        start_s = self._clock()
        self._backend.step(inputs)
        self._ticks += 1
        return 1000 * (self._clock() - start_s)


def tick_times_ms(tickers: Sequence[Ticker], turns: int) -> list[float]:
    """The median step of each, taken alternately after a few that do not count."""
    times: list[list[float]] = [[] for _ in tickers]
    for turn in range(WARM_UP_TICKS + turns):
        for ticker, own in zip(tickers, times, strict=True):
            took_ms = ticker.tick_ms()
            if turn >= WARM_UP_TICKS:
                own.append(took_ms)
    return [statistics.median(own) for own in times]


def measure_size(name: str, a: float, b: float, detail: str) -> Measure:
    """A ratio of the candidate to the baseline, smaller being better."""
    return Measure(name, b / a if a else math.inf, a, b, detail)


def memory_bytes(backend: Backend) -> int:
    """Bytes of a loaded model's weights and of the state of one row."""
    memory = backend.info.memory
    return memory.get("weights", 0) + memory.get("state_per_row", 0)


def disk_bytes(checkpoint: Checkpoint, backend: str) -> int:
    """Bytes of the files that a backend reads."""
    form = checkpoint.backends.get(backend)
    roles = ("lm", "mimi") if form is None else form.files
    return sum(checkpoint.files[role].stat().st_size for role in roles if role in checkpoint.files)

"""Timing ticks: paced, one a frame, as callers arrive; and back to back, as fast as they go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphon.backends.base import Backend, StepInputs
from antiphon.errors import ConfigError
from antiphon.models.script import TextEntry

LEVEL = 0.1
"""Standard deviation of the noise every row hears: about that of speech."""
SPOKEN_TOKEN, SPOKEN_TEXT = 5, "Hello."
"""The word that a tts row is given over and over: a token that is no padding, and a sentence of its own."""
THROUGHPUT_SHARE = 0.25
"""The ticks back to back get this share of a turn's seconds on top."""
LEAST_TICKS = 5


@dataclass(frozen=True, slots=True)
class TickPlan:
    """What is measured: row counts, ascending; seconds of paced ticks a turn; turns of each model.

    Every turn begins with fresh rows and ``lead_frames`` ticks that do not count, so contexts hold from
    that many frames on, and the same in every turn of every model.
    """

    rows: tuple[int, ...]
    seconds: float
    turns: int
    lead_frames: int

    def __post_init__(self) -> None:
        """Raise ConfigError for a plan that measures nothing."""
        if not self.rows or min(self.rows) < 1 or list(self.rows) != sorted(set(self.rows)):
            raise ConfigError(f"rows {list(self.rows)} must be different whole numbers from 1 on, ascending")
        if not 0 < self.seconds < math.inf:
            raise ConfigError(f"seconds = {self.seconds:g}; a turn needs more than 0")
        if self.turns < 1:
            raise ConfigError(f"turns = {self.turns} is below 1, the least it can be")
        if self.lead_frames < 0:
            raise ConfigError(f"lead_frames = {self.lead_frames} is below 0, the least it can be")


@dataclass(frozen=True, slots=True)
class TickTurn:
    """One model's turn at one number of rows.

    ``tick_s`` has the seconds of every paced tick; ``late`` of them ended over a frame's length after
    their frame was complete. ``frames`` were then answered back to back, all rows together, in ``frames_s``.
    """

    rows: int
    tick_s: tuple[float, ...]
    late: int
    frames: int
    frames_s: float


def take_turn(
    backend: Backend,
    rows: int,
    plan: TickPlan,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> TickTurn:
    """Make ``rows`` rows fresh, tick ``plan.lead_frames`` times for nothing, then measure.

    Raises:
        ConfigError: the backend has fewer rows.
    """
    feed = _Feed(backend, rows)
    for _ in range(plan.lead_frames):
        feed.tick()
    frame_s = backend.info.spec.frame_ms / 1000
    paced = max(LEAST_TICKS, math.ceil(plan.seconds / frame_s))
    tick_s, late, start_s = [], 0, clock()
    for index in range(paced):
        due_s = start_s + index * frame_s
        if (early_s := due_s - clock()) > 0:
            sleep(early_s)
        begin_s = clock()
        feed.tick()
        end_s = clock()
        tick_s.append(end_s - begin_s)
        late += end_s - due_s > frame_s
    ticks, start_s = 0, clock()
    while ticks < LEAST_TICKS or clock() - start_s < THROUGHPUT_SHARE * plan.seconds:
        feed.tick()
        ticks += 1
    return TickTurn(rows, tuple(tick_s), late, rows * ticks, clock() - start_s)


class _Feed:
    """Ticks over the first ``rows`` rows of a backend, all busy."""

    def __init__(self, backend: Backend, rows: int) -> None:
        if rows > backend.info.slots:
            raise ConfigError(f"{rows} rows cannot be measured on a backend that has {backend.info.slots}")
        spec, self._backend = backend.info.spec, backend
        self._rows, self._reset = np.arange(rows, dtype=np.int32), np.ones(rows, np.bool_)
        self._pcm, self._text = None, ()
        if not spec.kind.takes_audio:
            self._text = ((TextEntry((SPOKEN_TOKEN,), SPOKEN_TEXT),),) * rows
        else:
            noise = np.random.default_rng(0).standard_normal((rows, spec.frame_samples), np.float32)
            self._pcm = np.float32(LEVEL) * noise

    _text: tuple[tuple[TextEntry, ...], ...]

    def tick(self) -> None:
        """One tick; the first one makes the rows fresh."""
        self._backend.step(StepInputs(self._rows, self._reset, self._pcm, self._text))
        self._reset = np.zeros_like(self._reset)


def no_progress(done: int, total: int, what: str) -> None:
    """A warm-up is not shown here."""

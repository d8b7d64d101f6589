"""Runs one measured model, in this process or in its own, with its own memory and threads."""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from antiphon.backends.base import Backend, Progress, StepInputs
from antiphon.errors import AntiphonError, BackendError, ConfigError
from antiphon.models.script import TextEntry
from antiphon_quantize.bench.card import MeasuredMemory, SubjectFacts, TickPlan
from antiphon_quantize.bench.subject import Subject, load_subject, memory_of

LEVEL = 0.1
"""Standard deviation of the noise that is the input of every row, about that of speech."""
SPOKEN_TOKEN, SPOKEN_TEXT = 5, "Hello."
"""The word that a tts row repeats: a token that is not padding, as a separate sentence."""
THROUGHPUT_SHARE = 0.25
"""Additional share of a turn's seconds for ticks that run back to back."""
LEAST_TICKS = 5


@dataclass(frozen=True, slots=True)
class TickTurn:
    """The measurements of one turn: one model at one number of rows.

    ``tick_s`` has the duration in seconds of every paced tick; ``late`` of these ticks ended more than a
    frame's length after their frame was complete. Then ``frames`` frames of all rows together were answered
    back to back in ``frames_s`` seconds.
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
    """Reset ``rows`` rows, run ``plan.lead_frames`` uncounted ticks, then measure.

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
        """Run one tick; the first one resets the rows."""
        self._backend.step(StepInputs(self._rows, self._reset, self._pcm, self._text))
        self._reset = np.zeros_like(self._reset)


def no_progress(done: int, total: int, what: str) -> None:
    """Ignore the warm-up's progress."""


END_TIMEOUT_S = 10.0
"""Seconds for a process to end, before it is killed."""


class Player(Protocol):
    """A loaded model that is measured in turns."""

    @property
    def facts(self) -> SubjectFacts:
        """The facts of the model for the benchmark card."""

    def take_turn(self, rows: int) -> TickTurn:
        """Measure at this number of rows."""

    def memory(self) -> MeasuredMemory:
        """The largest memory that the model has used so far."""

    def close(self) -> None:
        """Release the model."""


@dataclass(frozen=True, slots=True)
class NearPlayer:
    """A measured model in this process, timed by any clock."""

    backend: Backend
    facts: SubjectFacts
    plan: TickPlan
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    peak_rss: Callable[[], int] | None = None

    def take_turn(self, rows: int) -> TickTurn:
        """Measure at this number of rows."""
        return take_turn(self.backend, rows, self.plan, clock=self.clock, sleep=self.sleep)

    def memory(self) -> MeasuredMemory:
        """This process's largest memory so far."""
        return memory_of(self.backend.info, self.peak_rss)

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()


class FarPlayer:
    """A measured model in its own process; the process waits between the turns."""

    def __init__(self, subject: Subject, plan: TickPlan, progress: Progress) -> None:
        """Start the process and load the model there.

        Raises:
            BackendError: the model cannot be loaded there; the message comes from that process.
        """
        context = multiprocessing.get_context("spawn")  # a fork would start with all modules of this process
        self._label = subject.label
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=play, args=(theirs, subject, plan), name=subject.label)
        self._process.start()
        theirs.close()
        try:
            while isinstance(answer := self._receive(), tuple):
                progress(*answer)
        except BaseException:
            self.close()
            raise
        self.facts: SubjectFacts = answer

    def take_turn(self, rows: int) -> TickTurn:
        """Measure at this number of rows."""
        turn: TickTurn = self._ask(rows)
        return turn

    def memory(self) -> MeasuredMemory:
        """The largest memory of the model's process so far."""
        memory: MeasuredMemory = self._ask(None)
        return memory

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # the process ends when its pipe is closed
        self._process.join(END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()
        self._process.close()

    def _ask(self, question: int | None) -> Any:
        try:
            self._pipe.send(question)
        except OSError as error:
            raise self._died() from error
        return self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(answer, str):
            raise BackendError(f"{self._label}: {answer}")
        return answer

    def _died(self) -> BackendError:
        self._process.join(END_TIMEOUT_S)
        return BackendError(
            f"the process of {self._label} ended unexpectedly, exit code {self._process.exitcode}"
        )


def play(pipe: Connection, subject: Subject, plan: TickPlan) -> None:
    """Run a player's process. It sends progress as tuples, then the facts, then an answer to each question; a
    str is an error.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches both processes: the parent will close the pipe
    try:
        backend, facts = load_subject(subject, plan.rows[-1], lambda *told: pipe.send(told))
        player = NearPlayer(backend, facts, plan)
        pipe.send(facts)
        while True:
            rows = pipe.recv()
            pipe.send(player.memory() if rows is None else player.take_turn(rows))
    except (EOFError, BrokenPipeError):
        return
    except (AntiphonError, MemoryError, RuntimeError) as error:  # torch reports a lack of memory by the last
        pipe.send(f"{error}" or type(error).__name__)

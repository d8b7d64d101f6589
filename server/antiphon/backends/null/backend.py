"""The null backend: no model, but every reply provably made of its own session's input, in order.

It echoes the input and writes a stamp (:mod:`antiphon.backends.null.stamp`) over the beginning of each frame.
A step takes ``step_ms``, asleep (as while a GPU works) or holding the interpreter lock (as a careless
extension does). Faults can be planned by tick, so that the layers above can be tested against them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.arrays import HostArrays
from antiphon.backends.base import FloatArray, IntArray, Progress
from antiphon.backends.executor import ExecutorFacts, Result, Work
from antiphon.backends.host import HostBackend
from antiphon.backends.null.stamp import (
    STAMP_SAMPLES,
    WordArray,
    extend_history,
    hash_frames,
    mix_words,
    write_stamps,
)
from antiphon.backends.snapshots import check_tensors
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

_ROW = np.dtype([("life", np.uint32), ("history", np.uint32)])
_FIRST_WORD_ID = 4  # ids below are padding and control pieces, which are never sent as text


@dataclass(frozen=True, slots=True)
class NullFaults:
    """Faults to come, by tick (the number of earlier calls of ``step``).

    ``fail_rows`` raises StepError once, after the first tick from then on that names one of those
    rows; at each tick of ``nan_at`` the first row that is named hears samples that are no numbers;
    ``slow_ms`` adds to that tick's time; from ``lose_device_at`` on every step raises DeviceLostError.
    """

    fail_rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    nan_at: frozenset[int] = frozenset()
    slow_ms: Mapping[int, float] = field(default_factory=dict)
    lose_device_at: int | None = None


class NullRows(HostArrays):
    """Rows of (life, history) counters; see :class:`antiphon.backends.executor.FrameExecutor`.

    A prompt's voice becomes codes, and a prompt's tokens history, by hashes.
    """

    pass_frames: Final = 32

    def __init__(
        self,
        spec: ModelSpec,
        *,
        step_ms: float,
        hold_gil: bool,
        faults: NullFaults,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Run nothing; see :class:`NullBackend`."""
        self.facts = ExecutorFacts(
            "null", "cpu", "float32", "none", {"numpy": np.__version__}, {"weights": 0}
        )
        self.step_s = step_ms / 1000.0
        self._spec, self._hold_gil = spec, hold_gil
        self._faults, self._failures = faults, dict(faults.fail_rows)
        self._clock, self._sleep = clock, sleep
        self._lives = self._ticks = 0

    def allocate(self, slots: int) -> None:
        """See the protocol."""
        self._rows = np.zeros(slots, dtype=_ROW)
        self._token_seeds = np.zeros(slots, dtype=np.uint32)
        for row in range(slots):
            self.set_parameters(row, SamplingParameters())

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """As many as are named, or all."""
        return len(self._rows) if is_fixed else int(rows.size)

    def warm_up(self, progress: Progress) -> None:
        """Do nothing: there is nothing to warm."""
        progress(1, 1, "null backend")

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Every reset begins a life of its own."""
        self._rows[list(rows)] = np.zeros((), dtype=_ROW)
        self._rows["life"][list(rows)] = np.arange(self._lives + 1, self._lives + len(rows) + 1) % 2**32
        self._lives += len(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Keep what the text tokens depend on: the seed, or that the row is greedy."""
        greedy = parameters.text_temperature == 0
        self._token_seeds[row] = 0 if greedy else (1 + parameters.text_seed) % 2**32

    def run(self, work: Work) -> Result:
        """Echo and stamp the named rows."""
        start_s = self._clock()
        tick, self._ticks = self._ticks, self._ticks + 1
        lost_at = self._faults.lose_device_at
        if lost_at is not None and tick >= lost_at:
            raise DeviceLostError(
                f"the null device was planned to be lost at tick {lost_at}; this is tick {tick}"
            )
        rows = work.rows
        if work.is_fresh.any():
            self.reset(rows[work.is_fresh])
        state, hashes = self._rows[rows], hash_frames(work.pcm)
        history = self._rows["history"][rows] = extend_history(state["history"], hashes)
        pcm = work.pcm.copy()
        write_stamps(pcm, state["life"], work.frames.astype(np.uint32), hashes, history)
        if tick in self._faults.nan_at:
            pcm[0] = np.nan
        tokens = self._tokens(rows, history)
        stamped_s = self._clock()
        self._wait(start_s + self.step_s + self._faults.slow_ms.get(tick, 0.0) / 1000.0)
        if failed := self._due_failures(tick, rows):
            raise StepError(f"rows {list(failed)} were planned to fail, and did at tick {tick}", rows=failed)
        stage_ms = {"stamp": 1000.0 * (stamped_s - start_s), "wait": 1000.0 * (self._clock() - stamped_s)}
        return Result(pcm, tokens, stage_ms=stage_ms)

    def encode_piece(self, codec: None, pcm: FloatArray) -> tuple[None, IntArray]:
        """See :class:`antiphon.backends.executor.PromptExecutor`."""
        mimi = self._spec.mimi
        codes = (hash_frames(pcm)[:, None] % np.uint32(mimi.cardinality)).astype(np.int32)
        return codec, np.repeat(codes, mimi.codebooks, axis=1)

    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:  # noqa: ARG002
        """See the protocol."""
        self._read(row, tokens.T)

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:  # noqa: ARG002
        """See the protocol."""
        self._read(row, inputs)

    def _read(self, row: int, inputs: NDArray[Any]) -> None:
        """Fold each frame of a prompt into the row's history; it takes as long as a step."""
        until_s = self._clock() + self.step_s
        for frame in inputs:
            word = np.array([zlib.crc32(frame.tobytes())], np.uint32)
            self._rows["history"][[row]] = extend_history(self._rows["history"][[row]], word)
        self._wait(until_s)

    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """Nothing: there is no delay."""

    def think_alone(self, row: int, codes: IntArray, frames: int) -> None:  # noqa: ARG002
        """See the protocol."""
        self._read(row, codes[None])

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row's counters."""
        return {"row": np.array(self._rows[row].tolist(), np.uint32)}

    def check(self, tensors: Mapping[str, Any]) -> None:
        """See the protocol."""
        check_tensors(tensors, {"row": ((2,), np.dtype(np.uint32))})

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Put a row's counters back."""
        self._rows[row] = tuple(tensors["row"])

    def state_bytes(self) -> int:
        """Bytes of counters for all rows."""
        return int(self._rows.nbytes)

    def close(self) -> None:
        """Nothing to release."""

    def _due_failures(self, tick: int, rows: IntArray) -> tuple[int, ...]:
        if not self._failures:
            return ()
        named = set(rows.tolist())
        for planned_tick, planned in self._failures.items():
            failed = tuple(row for row in planned if row in named)
            if planned_tick <= tick and failed:
                del self._failures[planned_tick]
                return failed
        return ()

    def _tokens(self, rows: IntArray, history: WordArray) -> IntArray | None:
        lm = self._spec.lm
        if self._spec.kind is not PipelineKind.DUPLEX or lm is None:
            return None
        words = mix_words(history + mix_words(self._token_seeds[rows]))
        tokens = _FIRST_WORD_ID + words % np.uint32(lm.text_card - _FIRST_WORD_ID)
        found: IntArray = tokens.astype(np.int32)
        return found

    def _wait(self, until_s: float) -> None:
        if not self._hold_gil:
            self._sleep(max(0.0, until_s - self._clock()))
            return
        while self._clock() < until_s:
            pass


class NullBackend(HostBackend):
    """Codec and duplex models of no weights.

    A duplex row stays silent for ``spec.delay_frames`` frames, like the model it stands for, and its text
    token is a function of its history, and of its text seed unless its text temperature is 0.
    """

    def __init__(
        self,
        spec: ModelSpec,
        slots: int,
        *,
        step_ms: float = 0.0,
        hold_gil: bool = False,
        faults: NullFaults | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make ``slots`` fresh rows.

        Raises:
            ConfigError: less than one slot.
            UnsupportedError: another pipeline, or a frame too short for a stamp.
        """
        if spec.kind not in (PipelineKind.CODEC, PipelineKind.DUPLEX):
            raise UnsupportedError(f"the null backend runs codec and duplex models, not {spec.kind}")
        if spec.frame_samples < STAMP_SAMPLES or spec.frame_samples % 2:
            raise UnsupportedError(
                f"the null backend needs an even frame of at least {STAMP_SAMPLES} samples, "
                f"this model has {spec.frame_samples}"
            )
        self.rows = NullRows(
            spec,
            step_ms=step_ms,
            hold_gil=hold_gil,
            faults=faults or NullFaults(),
            clock=clock,
            sleep=sleep,
        )
        super().__init__(spec, self.rows, slots=slots)


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    step_ms: float = 0.0,
    hold_gil: bool = False,
) -> NullBackend:
    """Make a null backend with a checkpoint's shape; its weights are not read."""
    if device not in (None, "cpu"):
        raise UnsupportedError(f"the null backend runs on cpu, not on {device}")
    return NullBackend(checkpoint.spec, slots, step_ms=step_ms, hold_gil=hold_gil)

"""The null backend: no model, but every reply provably made of its own session's input, in order.

It echoes the input and writes a stamp (:mod:`antiphon.backends.null.stamp`) over the beginning of each frame.
A step takes ``step_ms``, asleep (as while a GPU works) or holding the interpreter lock (as a careless
extension does). Faults can be planned by tick, so that the layers above can be tested against them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    HostArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
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
from antiphon.models.prompt import Prompt, check_prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

_ROW = np.dtype([("life", np.uint32), ("frame", np.uint32), ("history", np.uint32)])
_PASS_FRAMES = 32
_FIRST_WORD_ID = 4  # ids below are padding and control pieces, which are never sent as text


@dataclass(frozen=True, slots=True)
class NullFaults:
    """Faults to come, by tick (the number of earlier calls of ``step``).

    ``fail_rows`` raises StepError once, after the first tick from then on that names one of those
    rows; ``slow_ms`` adds to that tick's time; from ``lose_device_at`` on every step raises
    DeviceLostError.
    """

    fail_rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    slow_ms: Mapping[int, float] = field(default_factory=dict)
    lose_device_at: int | None = None


class NullBackend:
    """Rows of (life, frame, history) counters behind the interface of a real backend.

    Pipelines codec and duplex. A duplex row stays silent for ``spec.silent_frames`` frames, like the
    model it stands for, and its text token is a function of its history, and of its text seed unless
    its text temperature is 0.
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
        check_slots(slots)
        if spec.kind not in (PipelineKind.CODEC, PipelineKind.DUPLEX):
            raise UnsupportedError(f"the null backend runs codec and duplex models, not {spec.kind}")
        if spec.frame_samples < STAMP_SAMPLES or spec.frame_samples % 2:
            raise UnsupportedError(
                f"the null backend needs an even frame of at least {STAMP_SAMPLES} samples, "
                f"this model has {spec.frame_samples}"
            )
        self._info = BackendInfo(
            name="null",
            device="cpu",
            spec=spec,
            slots=slots,
            can_prime=spec.kind is PipelineKind.DUPLEX,
            versions={"numpy": np.__version__},
            memory={"weights": 0, "state_per_row": _ROW.itemsize},
        )
        self._step_s = step_ms / 1000.0
        self._hold_gil = hold_gil
        self._faults = faults or NullFaults()
        self._failures = dict(self._faults.fail_rows)
        self._clock = clock
        self._sleep = sleep
        self._rows = np.zeros(slots, dtype=_ROW)
        self._token_seeds = np.zeros(slots, dtype=np.uint32)
        self._readings: dict[int, tuple[str, int]] = {}  # row to a prompt's key and the frames read of it
        self._read: set[str] = set()
        self._lives = 0
        self._ticks = 0
        for row in range(slots):
            self.set_parameters(row, SamplingParameters())

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change while the backend lives."""
        return self._info

    def warm_up(self, progress: Progress) -> None:
        """Do nothing: there is nothing to warm."""
        progress(1, 1, "null backend")

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Keep what the text tokens depend on: the seed, or that the row is greedy."""
        check_row(self._info, row)
        greedy = parameters.text_temperature == 0
        self._token_seeds[row] = 0 if greedy else (1 + parameters.text_seed) % 2**32

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        """As many as are named, or all."""
        return self._info.slots if is_fixed else int(rows.size)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Echo and stamp the named rows; see :meth:`Backend.step`."""
        start_s = self._clock()
        check_inputs(self._info, inputs)
        assert inputs.pcm is not None
        tick, self._ticks = self._ticks, self._ticks + 1
        lost_at = self._faults.lose_device_at
        if lost_at is not None and tick >= lost_at:
            raise DeviceLostError(
                f"the null device was planned to be lost at tick {lost_at}; this is tick {tick}"
            )
        rows = inputs.rows
        self._reset(rows[inputs.reset])
        state = self._rows[rows]
        hashes = hash_frames(inputs.pcm)
        frames = state["frame"].copy()
        state["history"] = extend_history(state["history"], hashes)
        state["frame"] += 1
        self._rows[rows] = state
        pcm = inputs.pcm.copy()
        write_stamps(pcm, state["life"], frames, hashes, state["history"])
        emitted = frames >= self._info.spec.silent_frames
        tokens = self._tokens(rows, state["history"], emitted)
        stamped_s = self._clock()
        self._wait(start_s + self._step_s + self._faults.slow_ms.get(tick, 0.0) / 1000.0)
        if failed := self._due_failures(tick, rows):
            raise StepError(f"rows {list(failed)} were planned to fail, and did at tick {tick}", rows=failed)
        stage_ms = {"stamp": 1000.0 * (stamped_s - start_s), "wait": 1000.0 * (self._clock() - stamped_s)}
        consumed = np.ones(inputs.count, np.bool_)
        return StepOutputs(consumed, emitted, pcm, tokens, stage_ms=stage_ms)

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Read some frames of a prompt, which becomes the row's history; see :meth:`Backend.prime`."""
        check_row(self._info, row)
        lm = self._info.spec.lm
        if lm is None or not self._info.can_prime:
            raise UnsupportedError(f"a {self._info.kind} model takes no prompt")
        check_prompt(prompt, lm)
        start_s = self._clock()
        key, done = self._readings.get(row, ("", 0))
        if key != prompt.key:
            self._reset(np.array([row]))
            done = 0
        is_copied = done == 0 and prompt.key in self._read
        done = prompt.count if is_copied else min(done + _PASS_FRAMES, prompt.count)
        self._readings[row] = (prompt.key, done)
        self._wait(start_s + self._step_s)
        if done == prompt.count:
            del self._readings[row]
            self._read.add(prompt.key)
            self._rows[row]["history"] = int(prompt.key[:8], 16)
            self._rows[row]["frame"] = self._info.spec.silent_frames
        return PrimeProgress(done, prompt.count, is_copied)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's counters."""
        check_row(self._info, row)
        return RowSnapshot(self._info.name, {"row": self._rows[row].copy()}, _ROW.itemsize)

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's counters back. Raises UnsupportedError for another backend's snapshot."""
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        check_tensors(snapshot.tensors, {"row": ((), _ROW)})
        self._readings.pop(row, None)
        self._rows[row] = snapshot.tensors["row"]

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        """A row's counters as uint32 ``[3]``."""
        return {"row": np.array(snapshot.tensors["row"].tolist(), np.uint32)}

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        """A snapshot of a row's counters."""
        return RowSnapshot(self._info.name, {"row": np.array(tuple(arrays["row"]), _ROW)}, _ROW.itemsize)

    def state_bytes(self) -> int:
        """Bytes of counters for all rows."""
        return int(self._rows.nbytes)

    def close(self) -> None:
        """Nothing to release."""

    def _reset(self, rows: IntArray) -> None:
        for row in rows.tolist():
            self._readings.pop(row, None)
        self._rows[rows] = np.zeros((), dtype=_ROW)
        self._rows["life"][rows] = np.arange(self._lives + 1, self._lives + rows.size + 1) % 2**32
        self._lives += rows.size

    def _due_failures(self, tick: int, rows: IntArray) -> tuple[int, ...]:
        named = set(rows.tolist())
        for planned_tick, planned in self._failures.items():
            failed = tuple(row for row in planned if row in named)
            if planned_tick <= tick and failed:
                del self._failures[planned_tick]
                return failed
        return ()

    def _tokens(self, rows: IntArray, history: WordArray, emitted: BoolArray) -> IntArray | None:
        lm = self._info.spec.lm
        if self._info.kind is not PipelineKind.DUPLEX or lm is None:
            return None
        words = mix_words(history + mix_words(self._token_seeds[rows]))
        tokens = _FIRST_WORD_ID + words % np.uint32(lm.text_card - _FIRST_WORD_ID)
        return np.where(emitted, tokens.astype(np.int32), np.int32(NO_TOKEN))

    def _wait(self, until_s: float) -> None:
        if not self._hold_gil:
            self._sleep(max(0.0, until_s - self._clock()))
            return
        while self._clock() < until_s:
            pass


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

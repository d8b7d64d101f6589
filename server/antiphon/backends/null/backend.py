"""The null backend: no model, but every reply provably made of its own session's input, in order.

Codec and duplex models echo the input. A recogniser reads its tokens off the audio: a frame whose first
sample is token / 1000 spells that token, and silence is padding. A synthesiser spells the text that it is fed
in the same way, plus the first number of its voice. A stamp (:mod:`antiphon.backends.null.stamp`) is written
over the beginning of each frame of audio.

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
from antiphon.backends.executor import ExecutorFacts, Result, TextResult, TextStep, Work
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
from antiphon.backends.tts import TtsBackend
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import NEW_WORD, ScriptRules
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon.models.words import SpeechTiming

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

_ROW = np.dtype([("life", np.uint32), ("history", np.uint32)])
_FIRST_WORD_ID = 4  # ids below are padding and control pieces, which are never sent as text
LEVELS: Final = 1000
"""A token is spelled by samples of its number divided by this."""


@dataclass(frozen=True, slots=True)
class NullFaults:
    """Faults to come, by tick (the number of earlier calls of ``step``).

    ``fail_rows`` raises StepError once, after the first tick from then on that names one of those
    rows; a row that hears or speaks the token ``poison`` fails each time; at each tick of ``nan_at`` the
    first row that is named hears samples that are no numbers; ``slow_ms`` adds to that tick's time; from
    ``lose_device_at`` on every step raises DeviceLostError.
    """

    fail_rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    poison: int | None = None
    nan_at: frozenset[int] = frozenset()
    slow_ms: Mapping[int, float] = field(default_factory=dict)
    lose_device_at: int | None = None


class NullRows(HostArrays):
    """Rows of (life, history) counters, for every pipeline; see :mod:`antiphon.backends.executor`.

    A prompt's voice becomes codes, and a prompt's tokens history, by hashes. Rows of stt and tts also keep
    the tokens that wait for the model's delay, and those of tts the level of their voice.
    """

    pass_frames: Final = 32

    def __init__(
        self,
        spec: ModelSpec,
        *,
        step_ms: float = 0.0,
        hold_gil: bool = False,
        faults: NullFaults | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Run nothing yet. Raises UnsupportedError: a frame too short for a stamp."""
        if spec.frame_samples < STAMP_SAMPLES or spec.frame_samples % 2:
            raise UnsupportedError(
                f"the null backend needs an even frame of at least {STAMP_SAMPLES} samples, "
                f"this model has {spec.frame_samples}"
            )
        faults = faults or NullFaults()
        self.facts = ExecutorFacts(
            "null", "cpu", "float32", "none", {"numpy": np.__version__}, {"weights": 0}
        )
        self.step_s = step_ms / 1000.0
        self._spec, self._hold_gil = spec, hold_gil
        self._faults, self._failures = faults, dict(faults.fail_rows)
        self._clock, self._sleep = clock, sleep
        self._lives = self._ticks = 0
        self._delay, self._pad = 0, 0 if spec.lm is None else spec.lm.text_padding_id
        if spec.kind is PipelineKind.STT:
            self._delay = SpeechTiming.of(spec).delay_frames
        elif spec.kind is PipelineKind.TTS:
            rules = ScriptRules.of(spec)
            self._delay, self._entries = rules.first_sound, rules.entries

    def allocate(self, slots: int) -> None:
        """See the protocol."""
        self._rows = np.zeros(slots, dtype=_ROW)
        self._waiting = np.full((slots, self._delay), self._pad, np.int32)
        self._voices = np.zeros(slots, np.float32)
        self._state: dict[str, NDArray[Any]] = {"row": self._rows.view(np.uint32).reshape(slots, 2)}
        if not self._spec.kind.is_live:
            self._state["waiting"] = self._waiting
        if self._spec.kind is PipelineKind.TTS:
            self._state["voice"] = self._voices
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
        self.renew(rows)
        self._voices[list(rows)] = 0.0

    def renew(self, rows: Sequence[int] | IntArray) -> None:
        """Begin a life in each row, and keep its voice."""
        self._rows[list(rows)] = np.zeros((), dtype=_ROW)
        self._rows["life"][list(rows)] = np.arange(self._lives + 1, self._lives + len(rows) + 1) % 2**32
        self._waiting[list(rows)] = self._pad
        self._lives += len(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Keep what the tokens depend on: the seed, or that the row is greedy."""
        temperature, seed = parameters.text_temperature, parameters.text_seed
        if self._spec.kind is PipelineKind.TTS:
            temperature, seed = parameters.audio_temperature, parameters.audio_seed
        self._token_seeds[row] = 0 if temperature == 0 else (1 + seed) % 2**32

    def run(self, work: Work) -> Result:
        """Echo and stamp the named rows, or read what their audio spells."""
        start_s, tick, rows = *self._begin_tick(), work.rows
        if work.is_fresh.any():
            self.reset(rows[work.is_fresh])
        state, hashes = self._rows[rows], hash_frames(work.pcm)
        history = self._rows["history"][rows] = extend_history(state["history"], hashes)
        if self._spec.kind is PipelineKind.STT:
            heard = self._read_levels(work.pcm)
            is_greedy = self._token_seeds[rows] == 0
            written = np.where(is_greedy, self._delayed(rows, heard), self._tokens(rows, history))
            return Result(None, written, self._pauses(rows.size), self._end_tick(start_s, tick, rows, heard))
        pcm = work.pcm.copy()
        write_stamps(pcm, state["life"], work.frames.astype(np.uint32), hashes, history)
        if tick in self._faults.nan_at:
            pcm[0] = np.nan
        tokens = self._tokens(rows, history) if self._spec.kind is PipelineKind.DUPLEX else None
        return Result(pcm, tokens, stage_ms=self._end_tick(start_s, tick, rows))

    def advance(self, step: TextStep) -> TextResult:
        """Spell the text that was fed ``first_sound`` steps before; always ask for the next word."""
        start_s, tick, rows = *self._begin_tick(), step.rows
        fed = step.choices[:, 0] % self._entries
        spoken = self._delayed(rows, fed)
        state, hashes = self._rows[rows], spoken.astype(np.uint32)
        seeded = hashes + mix_words(self._token_seeds[rows])
        history = self._rows["history"][rows] = extend_history(state["history"], seeded)
        levels = np.where(spoken == self._pad, 0, spoken) % LEVELS / np.float32(LEVELS)
        pcm: FloatArray = np.empty((rows.size, self._spec.frame_samples), np.float32)
        pcm[:] = np.clip(levels + self._voices[rows], -1.0, 1.0)[:, None]
        write_stamps(pcm, state["life"], step.frames.astype(np.uint32), hashes, history)
        if tick in self._faults.nan_at:
            pcm[0] = np.nan
        stage_ms = self._end_tick(start_s, tick, rows, fed)
        is_heard = step.is_emitting.any()
        return TextResult(
            np.full(rows.size, NEW_WORD, np.int32), pcm[step.is_emitting] if is_heard else None, stage_ms
        )

    def compute_voice(self, prompt: Prompt | None) -> dict[str, Any]:
        """The first number of a voice, which is added to what is spoken."""
        speakers = None if prompt is None else prompt.speakers
        return {"voice": np.array(0.0 if speakers is None else speakers.flat[0], np.float32)}

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """See the protocol."""
        self._voices[row] = tensors["voice"]

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
        """Copy a row's counters, and what it has yet to say."""
        return {name: np.array(rows[row]) for name, rows in self._state.items()}

    def check(self, tensors: Mapping[str, Any]) -> None:
        """See the protocol."""
        check_tensors(tensors, {name: (rows.shape[1:], rows.dtype) for name, rows in self._state.items()})

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Put back what :meth:`snapshot` copied."""
        for name, rows in self._state.items():
            rows[row] = tensors[name]

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return sum(int(rows.nbytes) for rows in self._state.values())

    def close(self) -> None:
        """Nothing to release."""

    def _begin_tick(self) -> tuple[float, int]:
        """The time and the number of a tick. Raises DeviceLostError where that is planned."""
        tick, self._ticks = self._ticks, self._ticks + 1
        lost_at = self._faults.lose_device_at
        if lost_at is not None and tick >= lost_at:
            raise DeviceLostError(
                f"the null device was planned to be lost at tick {lost_at}; this is tick {tick}"
            )
        return self._clock(), tick

    def _end_tick(
        self, start_s: float, tick: int, rows: IntArray, tokens: IntArray | None = None
    ) -> dict[str, float]:
        """Wait until the step has taken its time; the times of its stages. Raises a planned StepError."""
        stamped_s = self._clock()
        self._wait(start_s + self.step_s + self._faults.slow_ms.get(tick, 0.0) / 1000.0)
        if failed := self._due_failures(tick, rows, tokens):
            raise StepError(f"rows {list(failed)} were planned to fail, and did at tick {tick}", rows=failed)
        return {"stamp": 1000.0 * (stamped_s - start_s), "wait": 1000.0 * (self._clock() - stamped_s)}

    def _due_failures(self, tick: int, rows: IntArray, tokens: IntArray | None) -> tuple[int, ...]:
        if tokens is not None and self._faults.poison is not None:
            poisoned: IntArray = rows[tokens == self._faults.poison]
            if poisoned.size:
                return tuple(poisoned.tolist())
        if not self._failures:
            return ()
        named = set(rows.tolist())
        for planned_tick, planned in self._failures.items():
            failed = tuple(row for row in planned if row in named)
            if planned_tick <= tick and failed:
                del self._failures[planned_tick]
                return failed
        return ()

    def _delayed(self, rows: IntArray, tokens: IntArray) -> IntArray:
        """Let tokens int32 ``[m]`` wait for the model's delay, and return those whose time has come."""
        waiting = np.concatenate((self._waiting[rows], tokens[:, None]), axis=1)
        self._waiting[rows] = waiting[:, 1:]
        due: IntArray = waiting[:, 0]
        return due

    def _read_levels(self, pcm: FloatArray) -> IntArray:
        """The token that each frame spells, int32 ``[m]``, modulo the size of the vocabulary."""
        assert self._spec.lm is not None
        levels = np.rint(np.nan_to_num(np.clip(np.abs(pcm[:, 0]) * LEVELS, 0, 2**30)))
        tokens: IntArray = np.where(levels == 0, self._pad, levels % self._spec.lm.text_card).astype(np.int32)
        return tokens

    def _pauses(self, rows: int) -> FloatArray | None:
        """Halves, quarters and so on: the same for every frame, float32 ``[m, heads]``."""
        assert self._spec.lm is not None
        heads = self._spec.lm.extra_heads
        return np.tile(0.5 ** np.arange(1, heads + 1, dtype=np.float32), (rows, 1)) if heads else None

    def _tokens(self, rows: IntArray, history: WordArray) -> IntArray:
        lm = self._spec.lm
        assert lm is not None
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
    """Codec, duplex and stt models of no weights.

    A duplex row stays silent for ``spec.delay_frames`` frames, like the model it stands for, and its text
    token is a function of its history, and of its text seed unless its text temperature is 0. So is that of
    an stt row, but at temperature 0 it is the token that the audio spells.
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
            UnsupportedError: a tts model, which :class:`TtsBackend` runs, or a frame too short for a stamp.
        """
        if spec.kind is PipelineKind.TTS:
            raise UnsupportedError(f"NullBackend runs frames, and {spec.name} is a tts model")
        self.rows = NullRows(
            spec, step_ms=step_ms, hold_gil=hold_gil, faults=faults, clock=clock, sleep=sleep
        )
        super().__init__(spec, self.rows, slots=slots)


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    step_ms: float = 0.0,
    hold_gil: bool = False,
) -> NullBackend | TtsBackend:
    """Make a null backend with a checkpoint's shape; its weights are not read."""
    if device not in (None, "cpu"):
        raise UnsupportedError(f"the null backend runs on cpu, not on {device}")
    spec = checkpoint.spec
    if spec.kind is PipelineKind.TTS:
        return TtsBackend(spec, NullRows(spec, step_ms=step_ms, hold_gil=hold_gil), slots=slots)
    return NullBackend(spec, slots, step_ms=step_ms, hold_gil=hold_gil)

"""The null backend: it has no model, but a test can trace every reply to its session's input and its order.

Codec and duplex models echo the input. A recogniser reads its tokens from the audio: a frame whose first
sample is token / 1000 encodes that token, and silence is padding. A synthesiser encodes its input text in the
same way, plus the first number of its voice. A stamp at the start of each frame of audio records the session,
the order and the input of the computation. Crosstalk, loss and reordering are therefore visible from the
outside without a model. One sample carries one bit as +-0.5. This value survives float samples and 16-bit
PCM, but not Opus.

A step takes ``step_ms``, either asleep (like a GPU) or holding the interpreter lock (like a faulty
extension). Faults can be planned by tick, to test the layers above.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import (
    BackendInfo,
    FloatArray,
    IntArray,
    Progress,
    Result,
    TextResult,
    TextStep,
    Work,
)
from antiphon.backends.host import HostBackend
from antiphon.backends.snapshots import HostArrays, check_tensors
from antiphon.backends.tts import TtsBackend
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import NEW_WORD, ScriptRules
from antiphon.models.spec import ModelSpec, PipelineKind
from antiphon.models.transcript import SpeechTiming

if TYPE_CHECKING:
    from antiphon.models.checkpoint import Checkpoint

WordArray = NDArray[np.uint32]

MAGIC = 0xA471F09E
STAMP_WORDS = 6  # magic, life, frame, frame hash, history, check
STAMP_SAMPLES = 32 * STAMP_WORDS
_LEVEL = np.float32(0.5)
_SHIFTS = (np.uint32(16), np.uint32(13))
_FACTORS = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))


def mix_words(words: WordArray) -> WordArray:
    """Scramble 32-bit words so that every bit depends on every bit (the finaliser of MurmurHash3)."""
    words = words ^ (words >> _SHIFTS[0])
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[0]
    return words


def hash_frames(pcm: FloatArray) -> WordArray:
    """Hash frames, float32 ``[n, even samples]``, to uint32 ``[n]`` by the exact bits of their samples.

    A multiply-shift hash: the sum of all 64-bit words, each times a different odd constant, modulo 2^64; the
    upper half is kept (Dietzfelbinger et al., 1997).
    """
    words = np.ascontiguousarray(pcm).view(np.uint64)
    sums: NDArray[np.uint64] = np.einsum("ij,j->i", words, _odd_weights(words.shape[1]))
    return (sums >> np.uint64(32)).astype(np.uint32)


def extend_history(history: WordArray, frame_hashes: WordArray) -> WordArray:
    """Fold one more frame's hash, uint32 ``[n]``, into a running history, uint32 ``[n]`` (0 at first)."""
    return mix_words(history * np.uint32(31) + frame_hashes + np.uint32(1))


def write_stamps(
    pcm: FloatArray, life: WordArray, frame: WordArray, frame_hash: WordArray, history: WordArray
) -> None:
    """Overwrite the first ``STAMP_SAMPLES`` of float32 ``pcm`` ``[n, samples]`` with a stamp per row.

    ``life`` counts the resets of the whole backend: it is constant within a session and differs
    between sessions. ``frame`` is the number of the answered input frame since that reset.
    ``frame_hash`` is :func:`hash_frames` of that frame, ``history`` is :func:`extend_history` over all
    frames since the reset.
    """
    words = np.empty((life.size, STAMP_WORDS), ">u4")
    columns = (MAGIC, life, frame, frame_hash, history, check_word(life, frame, frame_hash, history))
    for place, column in enumerate(columns):
        words[:, place] = column
    pcm[:, :STAMP_SAMPLES] = _levels().take(words.view(np.uint8), axis=0).reshape(-1, STAMP_SAMPLES)


def check_word(life: WordArray, frame: WordArray, frame_hash: WordArray, history: WordArray) -> WordArray:
    """The check word at the end of a stamp, which detects damage."""
    return mix_words(life * _FACTORS[0] + frame * _FACTORS[1] + frame_hash) ^ history


@cache
def _levels() -> FloatArray:
    """The eight samples of each byte, float32 ``[256, 8]``."""
    levels: FloatArray = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) - _LEVEL
    return levels


@cache
def _odd_weights(count: int) -> NDArray[np.uint64]:
    golden = np.uint64(0x9E3779B97F4A7C15)
    return (np.arange(1, count + 1, dtype=np.uint64) * golden) | np.uint64(1)


_ROW = np.dtype([("life", np.uint32), ("history", np.uint32)])
_FIRST_WORD_ID = 4  # ids below are padding and control pieces, which are never sent as text
LEVELS: Final = 1000
"""The divisor that turns a token's number into the sample that encodes it."""


@dataclass(frozen=True, slots=True)
class NullFaults:
    """Planned faults, by tick (the number of earlier calls of ``step``).

    ``fail_rows`` maps a tick to rows; from that tick on, the first tick that names one of them raises
    StepError, once. A row whose input or output is the token ``poison`` fails each time. At each tick of
    ``nan_at`` the first named row gets NaN. ``slow_ms`` maps a tick to milliseconds that are added to its
    time. From ``lose_device_at`` on every step raises DeviceLostError.
    """

    fail_rows: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    poison: int | None = None
    nan_at: frozenset[int] = frozenset()
    slow_ms: Mapping[int, float] = field(default_factory=dict)
    lose_device_at: int | None = None


class NullRows(HostArrays):
    """Rows of (life, history) counters, for every pipeline; see :mod:`antiphon.backends.base`.

    A duplex row is silent for ``spec.delay_frames`` frames, like the model that it imitates. Its text token
    is a function of its history and, unless its text temperature is 0, of its text seed. The same applies to
    an stt row, except that at temperature 0 its text token is the token that the audio encodes. Hashes turn a
    prompt's voice into codes, and a prompt's tokens into history. Rows of stt and tts also keep the tokens
    that wait for the model's delay; rows of tts also keep the level of their voice.
    """

    pass_frames: Final = 32

    def __init__(
        self,
        spec: ModelSpec,
        *,
        device: str = "cpu",
        step_ms: float = 0.0,
        hold_gil: bool = False,
        faults: NullFaults | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start; no model is loaded. Raises UnsupportedError: a frame too short for a stamp."""
        if spec.frame_samples < STAMP_SAMPLES or spec.frame_samples % 2:
            raise UnsupportedError(
                f"the null backend needs an even frame of at least {STAMP_SAMPLES} samples, "
                f"this model has {spec.frame_samples}"
            )
        self.facts = BackendInfo(
            "null", device, spec, versions={"numpy": np.__version__}, memory={"weights": 0}
        )
        self.step_s = step_ms / 1000.0
        self._spec, self._hold_gil = spec, hold_gil
        self._faults = faults or NullFaults()
        self._failures = dict(self._faults.fail_rows)
        self._clock, self._sleep = clock, sleep
        self._lives = self._ticks = 0
        self._pauses = 0.5 ** np.arange(1, spec.heads + 1, dtype=np.float32)  # the same for every frame
        self._delay, self._pad = 0, 0 if spec.lm is None else spec.lm.text_padding_id
        if spec.kind is PipelineKind.STT:
            self._delay = SpeechTiming.of(spec).delay_frames
        elif spec.kind is PipelineKind.TTS:
            rules = ScriptRules.of(spec)
            self._delay, self._entries = rules.first_sound, rules.entries

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""
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
        """The number of named rows, or of all rows if ``is_fixed``."""
        return len(self._rows) if is_fixed else int(rows.size)

    def warm_up(self, progress: Progress) -> None:
        """Report progress only: there is nothing to warm up."""
        progress(1, 1, "null backend")

    def reset(self, rows: Sequence[int] | IntArray) -> None:
        """Reset the state of each row, including its voice."""
        self.reset_rows(rows)
        self._voices[list(rows)] = 0.0

    def reset_rows(self, rows: Sequence[int] | IntArray) -> None:
        """Reset the state of each row, except for its voice."""
        self._rows[list(rows)] = np.zeros((), dtype=_ROW)
        self._rows["life"][list(rows)] = np.arange(self._lives + 1, self._lives + len(rows) + 1) % 2**32
        self._waiting[list(rows)] = self._pad
        self._lives += len(rows)

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Store the values that tokens depend on: the seed, and whether the row is greedy."""
        temperature, seed = parameters.text_temperature, parameters.text_seed
        if self._spec.kind is PipelineKind.TTS:
            temperature, seed = parameters.audio_temperature, parameters.audio_seed
        self._token_seeds[row] = 0 if temperature == 0 else (1 + seed) % 2**32

    def run(self, work: Work) -> Result:
        """Echo and stamp the named rows, or read the tokens in their audio."""
        start_s, tick, rows = *self._begin_tick(), work.rows
        if work.is_fresh.any():
            self.reset(rows[work.is_fresh])
        state, hashes = self._rows[rows], hash_frames(work.pcm)
        history = self._rows["history"][rows] = extend_history(state["history"], hashes)
        if self._spec.kind is PipelineKind.STT:
            heard = self._read_levels(work.pcm)
            is_greedy = self._token_seeds[rows] == 0
            written = np.where(is_greedy, self._delayed(rows, heard), self._tokens(rows, history))
            pauses = np.tile(self._pauses, (rows.size, 1)) if self._pauses.size else None
            return Result(None, written, pauses, self._end_tick(start_s, tick, rows, heard))
        pcm = work.pcm.copy()
        write_stamps(pcm, state["life"], work.frames.astype(np.uint32), hashes, history)
        if tick in self._faults.nan_at:
            pcm[0] = np.nan
        tokens = self._tokens(rows, history) if self._spec.kind is PipelineKind.DUPLEX else None
        return Result(pcm, tokens, stage_ms=self._end_tick(start_s, tick, rows))

    def advance(self, step: TextStep) -> TextResult:
        """Encode as audio the text that was the input ``first_sound`` steps earlier; always request the next
        word.
        """
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
        """The first number of a voice, which is added to the encoded text."""
        speakers = None if prompt is None else prompt.speakers
        return {"voice": np.array(0.0 if speakers is None else speakers.flat[0], np.float32)}

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write a computed voice into a row."""
        self._voices[row] = tensors["voice"]

    def encode_piece(self, codec: None, pcm: FloatArray) -> tuple[None, IntArray]:
        """Encode frames ``[F, frame_samples]`` to codes int32 ``[F, codebooks]`` with a codec that belongs to
        no row.
        """
        mimi = self._spec.mimi
        codes = (hash_frames(pcm)[:, None] % np.uint32(mimi.cardinality)).astype(np.int32)
        return codec, np.repeat(codes, mimi.codebooks, axis=1)

    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:  # noqa: ARG002
        """Process inputs int32 ``[1 + n_q, T]`` with a row's language model, without sampling."""
        self._read(row, tokens.T)

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:  # noqa: ARG002
        """Like :meth:`read_tokens`, for inputs ``[T, dim]`` that are already embedded."""
        self._read(row, inputs)

    def _read(self, row: int, inputs: NDArray[Any]) -> None:
        """Add each frame of a prompt to the row's history; this takes the time of a step."""
        until_s = self._clock() + self.step_s
        for frame in inputs:
            word = np.array([zlib.crc32(frame.tobytes())], np.uint32)
            self._rows["history"][[row]] = extend_history(self._rows["history"][[row]], word)
        self._wait(until_s)

    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """No effect: the null model keeps no delayed tokens."""

    def run_lm_row(self, row: int, codes: IntArray, frames: int) -> None:  # noqa: ARG002
        """Run a sampled step of one row's language model with the codes int32 ``[input codebooks]``."""
        self._read(row, codes[None])

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row's counters, and its waiting tokens."""
        return {name: np.array(rows[row]) for name, rows in self._state.items()}

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""
        check_tensors(tensors, {name: (rows.shape[1:], rows.dtype) for name, rows in self._state.items()})

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Restore a row from the result of :meth:`snapshot`."""
        for name, rows in self._state.items():
            rows[row] = tensors[name]

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return sum(int(rows.nbytes) for rows in self._state.values())

    def close(self) -> None:
        """No effect: there is nothing to release."""

    def _begin_tick(self) -> tuple[float, int]:
        """The time and the number of a tick. Raises a planned DeviceLostError."""
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
        """Wait for the end of the step; return the stages' times in ms, or raise a planned StepError."""
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
        """Delay tokens int32 ``[m]`` by the model's delay; returns those that are due."""
        waiting = np.concatenate((self._waiting[rows], tokens[:, None]), axis=1)
        self._waiting[rows] = waiting[:, 1:]
        due: IntArray = waiting[:, 0]
        return due

    def _read_levels(self, pcm: FloatArray) -> IntArray:
        """The token that each frame encodes, int32 ``[m]``, modulo the size of the vocabulary."""
        assert self._spec.lm is not None
        levels = np.rint(np.nan_to_num(np.clip(np.abs(pcm[:, 0]) * LEVELS, 0, 2**30)))
        tokens: IntArray = np.where(levels == 0, self._pad, levels % self._spec.lm.text_card).astype(np.int32)
        return tokens

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


def make(
    checkpoint: Checkpoint,
    *,
    slots: int,
    device: str | None = None,
    step_ms: float = 0.0,
    hold_gil: bool = False,
) -> HostBackend | TtsBackend:
    """Make a null backend with a checkpoint's shape; its weights are not read.

    ``device`` may be "null:N", a simulated device among several.
    """
    if device not in (None, "cpu") and not device.startswith("null:"):
        raise UnsupportedError(f"the null backend runs on cpu or null:N, not on {device}")
    spec = checkpoint.spec
    rows = NullRows(spec, device=device or "cpu", step_ms=step_ms, hold_gil=hold_gil)
    host = TtsBackend if spec.kind is PipelineKind.TTS else HostBackend
    return host(spec, rows, slots=slots)

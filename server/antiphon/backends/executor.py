"""What a framework provides to the host (:mod:`antiphon.backends.host`): stages over rows, and their state.

The host holds the meaning of a tick: which rows are new, which of them emit, what an error means. An executor
runs one framework. It keeps S rows of state and parameters, and computes the rows that it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import NO_STAGES, BoolArray, FloatArray, IntArray, Progress
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What an executor says of itself, for :class:`antiphon.backends.base.BackendInfo`.

    ``memory`` has at least "weights", the bytes of all weights, and on a GPU "total", the device's bytes;
    "state_per_row" and "caches" only where the host cannot know them (see :class:`RowHost`). ``row_ms``,
    ``device_name``, ``work`` and ``threads`` are as in :class:`antiphon.backends.base.BackendInfo`.
    """

    name: str
    device: str
    dtype: str
    quantization: str
    versions: Mapping[str, str]
    memory: Mapping[str, int]
    row_ms: float | None = None
    device_name: str = ""
    threads: str = ""
    work: Mapping[str, int] = field(default_factory=dict)


class Work(NamedTuple):
    """One tick of a codec, duplex or stt model, for m rows.

    ``rows`` is int32 ``[m]``, checked: each exists, each once. ``frames`` is int64 ``[m]``: what each row has
    been given since its reset, this frame not included. Of the masks, bool ``[m]``, ``is_fresh`` marks rows
    to make fresh first, ``is_forgotten`` rows whose encoder is made fresh once the language model has this
    frame's codes, and ``is_emitting`` rows that are decoded. ``pcm`` is float32 ``[m, frame_samples]``.
    ``is_fixed``: all S rows are computed, each in its own place.
    """

    rows: IntArray
    frames: NDArray[np.int64]
    is_fresh: BoolArray
    is_forgotten: BoolArray
    is_emitting: BoolArray
    pcm: FloatArray
    is_fixed: bool = False


class Result(NamedTuple):
    """What a tick computed, in the order of ``Work.rows``; the arrays belong to the caller.

    ``pcm`` float32 ``[m, frame_samples]`` (None for stt), ``text_tokens`` int32 ``[m]`` (None for a codec),
    ``vad`` float32 ``[m, heads]`` (stt with heads). Rows that do not emit may hold anything.
    """

    pcm: FloatArray | None = None
    text_tokens: IntArray | None = None
    vad: FloatArray | None = None
    stage_ms: Mapping[str, float] = NO_STAGES


class DeviceRows(Protocol):
    """S rows of state on one device, and what every executor does with them."""

    @property
    def facts(self) -> ExecutorFacts:
        """What does not change while it lives."""
        ...

    def allocate(self, slots: int) -> None:
        """Have ``slots`` fresh rows with default parameters; former rows are let go of first."""
        ...

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """How many physical rows a tick over these rows runs."""
        ...

    def warm_up(self, progress: Progress) -> None:
        """Run every shape that ticks may have; the host makes all rows fresh afterwards."""
        ...

    def reset(self, rows: Sequence[int]) -> None:
        """Make rows like fresh ones, bit for bit: rings are erased too, parameters stay."""
        ...

    def age(self, frames: int) -> None:
        """Let every row look as if it had been given so many frames, for timing; a reset follows."""
        ...

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""
        ...

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row: named tensors, each ring cut to what its own position says is filled."""
        ...

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError unless :meth:`restore` can take these tensors."""
        ...

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked tensors into a row; what they do not cover is as in a fresh row."""
        ...

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """A snapshot's tensors as numpy arrays; types that numpy lacks as unsigned integers, bit by bit."""
        ...

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """The reverse of :meth:`to_host`."""
        ...

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""
        ...

    def probe(self) -> None:
        """Do a little work on the device; raises when it no longer works."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


class FrameExecutor(DeviceRows, Protocol):
    """Runs codec, duplex and stt models: frames of PCM in."""

    def run(self, work: Work) -> Result:
        """One tick. What it raises is judged by the host: the rows of ``work`` may be half written then."""
        ...


@runtime_checkable
class PromptExecutor(Protocol):
    """What an executor of duplex models adds so that its rows can be given prompts.

    :mod:`antiphon.backends.prompts` knows what is read when; ``frames`` counts the frames that the row has
    seen when the call is over.
    """

    @property
    def pass_frames(self) -> int:
        """Frames that one call takes: as many as cost little more than the weights a single one reads."""
        ...

    def encode_piece(self, codec: Any, pcm: FloatArray) -> tuple[Any, IntArray]:
        """Frames ``[F, frame_samples]`` to codes int32 ``[F, codebooks]``, by a codec of no row.

        ``codec`` is None at first, and then what the call before returned beside its codes.
        """
        ...

    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:
        """Let a row's language model see its inputs int32 ``[1 + n_q, T]``, and sample nothing."""
        ...

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:
        """The same for inputs ``[T, dim]`` that are embedded already."""
        ...

    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """Put tokens ``[k]`` into a row's delay cache: what those streams are fed at those steps."""
        ...

    def think_alone(self, row: int, codes: IntArray, frames: int) -> None:
        """A step of one row's language model, sampled as ever, which hears codes int32 ``[heard]``."""
        ...


@dataclass(frozen=True, slots=True)
class TextStep:
    """One step of a tts model, for k rows.

    ``rows`` is int32 ``[k]``; ``frames`` int64 ``[k]``, the steps each has taken. ``choices`` is int32
    ``[k, 2]``: what a row is fed when the model asks for a word, and when it does not. ``is_emitting``, bool
    ``[k]``, marks rows that are decoded. ``is_silent``: all rows are within their audio delay, so there is no
    audio token to be found. ``is_fixed`` as in :class:`Work`.
    """

    rows: IntArray
    frames: NDArray[np.int64]
    choices: IntArray
    is_emitting: BoolArray
    is_silent: bool
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class TextResult:
    """What a step of a tts model computed, in the order of ``TextStep.rows``.

    ``asked`` is int32 ``[k]``, the text token that was sampled. ``pcm`` is float32 ``[e, frame_samples]``
    for the e rows that emit, in their order, None where there is none.
    """

    asked: IntArray
    pcm: FloatArray | None
    stage_ms: Mapping[str, float] = field(default_factory=dict)


class TextExecutor(DeviceRows, Protocol):
    """Runs tts models: text in, frames of PCM out."""

    def renew(self, rows: IntArray) -> None:
        """Make rows fresh, fast: rings may be hidden instead of erased; voices stay."""
        ...

    def advance(self, step: TextStep) -> TextResult:
        """One step of some rows."""
        ...

    def compute_voice(self, prompt: Prompt | None) -> dict[str, Any]:
        """The tensors of a row that a voice gives it (None: no speaker), for :meth:`write_voice`."""
        ...

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Give a row a voice that was computed."""
        ...

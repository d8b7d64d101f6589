"""The interface of a backend: S rows of model state; each tick advances the named rows by one frame.

A backend has the methods of :class:`Backend`. A factory named in :mod:`antiphon.backends.registry` makes it;
from then on only one thread uses it. A framework provides an executor, :class:`DeviceRows`, which keeps S
rows of state and computes the rows of a tick. :mod:`antiphon.backends.host` tracks which rows are new and
which emit, and classifies errors.

Rules every backend keeps (``tests/backends/test_contract_*.py`` check them):

* A tick names its rows, each once, in any order. Rows that are not named keep their state.
* ``reset`` is applied first, and the row then starts exactly like a fresh one.
* No row can influence another. In an ``is_fixed`` tick a row's results do not depend, to the last bit, on the
  other named rows or on their order. In other ticks they may differ in the last bits, because matrix products
  have other sizes; docs/adr/0021-ready-rows.md lists the stages that are bit-identical there too.
* Outputs of rows that did not emit are undefined and must not be read.

A backend may run more physical rows than were named; :meth:`Backend.plan` returns how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from antiphon.arrays import FloatArray as FloatArray
from antiphon.backends.page_pool import PagePool
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.script import TextEntry as TextEntry
from antiphon.models.spec import ModelSpec

IntArray: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]
HostArray: TypeAlias = NDArray[Any]
Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with (done, total, what) during a long operation."""

FRAMES: Final = "host.frames"
"""In a snapshot: the number of frames that the row has received since its reset, int64."""

NO_TOKEN = -1
"""In ``StepOutputs.text_tokens``: the row has no text token in this tick."""

NO_STAGES: Final[Mapping[str, float]] = MappingProxyType({})
"""No times of stages."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The input of one tick for the m rows it names.

    ``rows`` is int32 ``[m]``, m at least 1, each row once, in any order; ``reset`` is bool ``[m]``. ``pcm``
    is float32 ``[m, frame_samples]`` in [-1, 1] for codec, duplex and stt, and None for tts. ``text`` is
    empty except for tts: the next entries for each row, of which the row takes all or none. An ``is_fixed``
    tick runs all S rows of the backend, each in its own place; rows that are not named are idle.
    """

    rows: IntArray
    reset: BoolArray
    pcm: FloatArray | None = None
    text: tuple[tuple[TextEntry, ...], ...] = ()
    is_fixed: bool = False

    @property
    def count(self) -> int:
        """The number of rows m of this tick."""
        return int(self.rows.size)


class StepOutputs(NamedTuple):
    """The output of one tick for the m rows it named, in their order.

    ``consumed`` and ``emitted`` are bool ``[m]``: whether the row took its input frame, and whether it
    produced an output frame. A duplex row consumes its first ``max_delay`` frames and does not emit. A tts
    row consumes when it takes the offered entries and, if no entries are offered, while it has work left. A
    row that neither consumes nor emits is idle. ``pcm`` is float32 ``[m, frame_samples]`` (codec, duplex,
    tts). ``text_tokens`` is int32 ``[m]``, ``NO_TOKEN`` where there is none (duplex, stt; for tts the index
    of the entry, counted from 0 since the reset, that begins in this frame). ``vad`` is float32 ``[m,
    heads]`` (stt with heads). ``finished`` is bool ``[m]`` (tts: all text is spoken). ``stage_ms`` gives the
    time of each stage of this tick, by name ("encode", "lm", "depformer", "sample", "decode").
    """

    consumed: BoolArray
    emitted: BoolArray
    pcm: FloatArray | None = None
    text_tokens: IntArray | None = None
    vad: FloatArray | None = None
    finished: BoolArray | None = None
    stage_ms: Mapping[str, float] = NO_STAGES


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """The whole state of one row, to be restored into any row of a backend of the same model.

    ``tensors`` maps the state's names to arrays without the row axis, in the backend's own type (numpy,
    torch). ``bytes`` is their size.
    """

    backend: str
    tensors: Mapping[str, Any]
    bytes: int


@dataclass(frozen=True, slots=True)
class PrimeProgress:
    """The progress of a row's prompt: ``done`` of ``total`` frames.

    ``is_copied``: the state was copied from an earlier row with the same prompt.
    """

    done: int
    total: int
    is_copied: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the whole prompt is read, so that the row can be stepped."""
        return self.done == self.total


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """The fixed properties of a backend.

    ``can_prime``: prime is supported. ``memory`` is bytes by purpose, for admission and the report:
    "weights", "state_per_row", "caches" (the limit on prompts and voices kept for later rows), and for a GPU
    "tick_per_row" (memory that a tick needs for each row) and "total" (the part of the GPU's memory that this
    process may use). ``row_ms`` is the time that each row adds to a tick, if the backend knows it and the
    engine cannot measure it (tts). ``device_name`` is the driver's name for a GPU. ``work`` is the cost of a
    tick, as the fields of :class:`antiphon.models.costs.TickWork`, or empty. ``threads``, after the warm-up,
    describes how a tick uses a CPU's threads; it is empty if unknown. ``cpu_threads`` is their number, 0 for
    a device. ``splits_rows``: each thread computes rows of its own, and waits for the others only at the end
    of a stage. ``chooses_threads``: :meth:`Resizable.choose_threads` has an effect.

    An executor's info has no slots, and of ``memory`` only the entries that the host cannot determine.
    """

    name: str
    device: str
    spec: ModelSpec
    slots: int = 0
    dtype: str = "float32"
    quantization: str = "none"
    can_prime: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    row_ms: float | None = None
    device_name: str = ""
    threads: str = ""
    cpu_threads: int = 0
    splits_rows: bool = False
    work: Mapping[str, int] = field(default_factory=dict)
    chooses_threads: bool = False


class Backend(Protocol):
    """S rows of model state on one device. Only the engine thread calls it."""

    @property
    def info(self) -> BackendInfo:
        """The properties that do not change while the backend exists."""

    def warm_up(self, progress: Progress) -> None:
        """Do the one-time work that would delay the first tick (compile, capture, page in); leaves all rows
        fresh.

        Raises:
            MemoryError: the device has too little memory for ticks of this number of rows;
                :meth:`Resizable.resize` is still possible.
        """

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters, from the next step on. They survive a reset."""

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        """The number of rows that a tick over ``rows`` int32 ``[m]`` computes: m or more."""

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the named rows by one frame.

        Raises:
            StepError: some rows failed; the others are intact. The failed rows were advanced and have no
                outputs; the pocket backend reports a failure before it advances any row.
            DeviceLostError: the device's state is unreliable.
        """

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Process a prompt for a row, one bounded piece of work per call, until it is done.

        The first call for a row resets it; the row must not be stepped before the last call, nor be reset
        after it. The row then continues as if it had stepped through the prompt with all tokens forced, and
        emits from its first frame on. An abandoned prompt needs no clean-up: a reset, or another prompt,
        starts again.

        Raises:
            UnsupportedError: ``info.can_prime`` is false, or this model cannot take the prompt.
            StepError, DeviceLostError: as :meth:`step`.
        """

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy the state of a row."""

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a snapshot into a row, which then continues bit-identically."""

    def to_host(self, snapshot: RowSnapshot) -> dict[str, HostArray]:
        """Convert a snapshot to numpy arrays, bit by bit, which another process with the same model can
        restore.

        Types that numpy lacks become unsigned integers of the same width.
        """

    def from_host(self, arrays: Mapping[str, HostArray]) -> RowSnapshot:
        """Reverse :meth:`to_host`; :meth:`restore` refuses arrays that do not fit.

        Raises:
            StepError, DeviceLostError: as :meth:`step`; also if the device has too little memory.
        """

    def state_bytes(self) -> int:
        """Bytes of state held for all rows together."""

    def close(self) -> None:
        """Release the device. No other call follows."""


@runtime_checkable
class Resizable(Protocol):
    """A backend that can be resized and timed before ``warm_up``, while its weights remain loaded."""

    def resize(self, slots: int) -> None:
        """Change to ``slots`` rows, all fresh and with default parameters; ``info`` is updated.

        The former rows are freed before the new ones are made.
        """

    def choose_threads(self) -> None:
        """Measure with the current rows how ticks best use several threads, and the cost of their runs; both
        outlast every resize.

        Without this call ``warm_up`` chooses; it may also change how many rows a tick needs to be divided
        into parts.
        """

    def age(self, frames: int) -> None:
        """Make every row appear to have received ``frames`` frames; the content of its rings is unchanged.

        For timing: ``warm_up`` makes all rows fresh.
        """


class PageCount(NamedTuple):
    """Number of free pages of keys and values, and of all pages."""

    free: int
    pages: int


@runtime_checkable
class Paged(Protocol):
    """A backend whose rows share a pool of pages of keys and values, which may be smaller than all rows could
    fill.
    """

    def page_count(self) -> PageCount | None:
        """The numbers of free pages and of all pages; None if each row has its own pages."""
        ...

    def make_room(self, rows: IntArray, reset: BoolArray) -> list[int]:
        """The rows that must end so that ``rows [m]`` have pages in the next tick, the youngest first.

        ``reset [m]`` marks rows that the tick resets. The pages of the returned rows are released.
        """
        ...

    def release(self, row: int) -> None:
        """Free the pages of a row whose call has ended."""
        ...


class Work(NamedTuple):
    """One tick of a codec, duplex or stt model, for m rows.

    ``rows`` is int32 ``[m]``, checked: each exists, and is named once. ``frames`` is int64 ``[m]``: the
    frames of each row since its reset, without this one. The masks are bool ``[m]``: ``is_fresh`` marks rows
    to reset first, ``is_emitting`` rows to decode. ``is_forgotten`` marks rows whose encoder is reset after
    the language model has received this frame's codes. ``pcm`` is float32 ``[m, frame_samples]``.
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
    """The results of a tick, in the order of ``Work.rows``; the arrays belong to the caller.

    ``pcm`` float32 ``[m, frame_samples]`` (None for stt), ``text_tokens`` int32 ``[m]`` (None for a codec),
    ``vad`` float32 ``[m, heads]`` (stt with heads). Values of rows that do not emit are undefined.
    """

    pcm: FloatArray | None = None
    text_tokens: IntArray | None = None
    vad: FloatArray | None = None
    stage_ms: Mapping[str, float] = NO_STAGES


class DeviceRows(Protocol):
    """S rows of state on one device, and the methods that all executors have."""

    @property
    def facts(self) -> BackendInfo:
        """The executor's part of the backend's properties."""

    def allocate(self, slots: int) -> None:
        """Allocate ``slots`` fresh rows with default parameters; the former rows are freed first."""

    def plan(self, rows: IntArray, *, is_fixed: bool) -> int:
        """The number of rows that a tick over ``rows`` computes."""

    def warm_up(self, progress: Progress) -> None:
        """Run every shape that ticks can have; the host makes all rows fresh afterwards."""

    def reset(self, rows: Sequence[int]) -> None:
        """Reset rows bit for bit: rings are erased too. Parameters are kept."""

    def age(self, frames: int) -> None:
        """Make every row appear to have received ``frames`` frames; the content of its rings is unchanged."""

    def choose_threads(self) -> None:
        """Measure with the current rows how ticks best use several threads; the choice outlasts every
        resize.
        """

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters."""

    def snapshot(self, row: int) -> dict[str, Any]:
        """Copy a row: named tensors, each ring cut to the part that its position marks as filled."""

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Raise UnsupportedError if :meth:`restore` cannot accept these tensors."""

    def restore(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write checked tensors into a row; its other tensors are as in a fresh row."""

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Convert a snapshot's tensors to numpy arrays; types that numpy lacks become unsigned integers, bit
        by bit.
        """

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Reverse :meth:`to_host`."""

    def state_bytes(self) -> int:
        """Bytes of state of all rows."""

    def probe(self) -> None:
        """Do a little work on the device; raises if it fails."""

    def close(self) -> None:
        """Release the device."""


class FrameExecutor(DeviceRows, Protocol):
    """Runs codec, duplex and stt models, whose input is frames of PCM."""

    def run(self, work: Work) -> Result:
        """Run one tick. The host classifies its errors; the rows of ``work`` may then be half written."""


@runtime_checkable
class PooledRows(Protocol):
    """The additional property of an executor whose rows may share pages. ``pool`` is None while each row has
    its own pages.
    """

    @property
    def pool(self) -> PagePool | None:
        """The pool from which the rows take pages; None while each row has pages of its own."""
        ...


@runtime_checkable
class PromptExecutor(Protocol):
    """The additional methods of an executor of duplex models whose rows accept prompts.

    :mod:`antiphon.backends.prompts` schedules the calls. ``frames`` is the row's number of frames after a
    call.
    """

    @property
    def pass_frames(self) -> int:
        """Frames of a prompt that one call reads: as many as take little longer than reading the weights
        once.
        """

    def encode_piece(self, codec: Any, pcm: FloatArray) -> tuple[Any, IntArray]:
        """Encode frames ``[F, frame_samples]`` to codes int32 ``[F, codebooks]`` with a codec that belongs to
        no row.

        ``codec`` is None at first, then the value that the previous call returned with its codes.
        """

    def read_tokens(self, row: int, tokens: IntArray, frames: int) -> None:
        """Process inputs int32 ``[1 + n_q, T]`` with a row's language model, without sampling."""

    def read_embedded(self, row: int, inputs: FloatArray, frames: int) -> None:
        """Like :meth:`read_tokens`, for inputs ``[T, dim]`` that are already embedded."""

    def write_tokens(self, row: int, streams: IntArray, steps: IntArray, tokens: IntArray) -> None:
        """Put ``tokens [k]`` into a row's delay cache, as the inputs of ``streams [k]`` at ``steps [k]``."""

    def run_lm_row(self, row: int, codes: IntArray, frames: int) -> None:
        """Run a sampled step of one row's language model with the codes int32 ``[input codebooks]``."""


@dataclass(frozen=True, slots=True)
class TextStep:
    """The inputs of one step of a tts model for k rows.

    ``rows`` is int32 ``[k]``. ``frames``, int64 ``[k]``, is the number of steps that each row has taken.
    ``choices``, int32 ``[k, 2]``, holds two inputs of each row: one if the model requests a word, one if it
    does not. ``is_emitting``, bool ``[k]``, marks rows that are decoded. ``is_silent``: all rows are within
    their audio delay, so no audio token is computed. ``is_fixed`` as in :class:`Work`.
    """

    rows: IntArray
    frames: NDArray[np.int64]
    choices: IntArray
    is_emitting: BoolArray
    is_silent: bool
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class TextResult:
    """The results of a tts model's step, in the order of ``TextStep.rows``.

    ``asked`` is int32 ``[k]``, the text token that was sampled. ``pcm`` is float32 ``[e, frame_samples]`` for
    the e rows that emit, in their order, or None if e is 0.
    """

    asked: IntArray
    pcm: FloatArray | None
    stage_ms: Mapping[str, float] = field(default_factory=dict)


class TextExecutor(DeviceRows, Protocol):
    """Runs tts models: text in, frames of PCM out."""

    def reset_rows(self, rows: IntArray) -> None:
        """Reset rows quickly and keep their voices: rings may be hidden instead of erased."""

    def advance(self, step: TextStep) -> TextResult:
        """Run one step of the rows of ``step``."""

    def compute_voice(self, prompt: Prompt | None) -> dict[str, Any]:
        """Compute the tensors of a voice (None: no speaker), to be passed to :meth:`write_voice`."""

    def write_voice(self, row: int, tensors: Mapping[str, Any]) -> None:
        """Write a computed voice into a row."""


def row_counts(slots: int) -> tuple[int, ...]:
    """The row counts at which ticks are timed: 1, 2, 4, 8, ... and the number of slots."""
    powers = [1 << shift for shift in range(slots.bit_length()) if 1 << shift < slots]
    return (*powers, slots)

"""The part of a tick that is the same for every framework, for codec, duplex and stt models.

The host checks inputs, counts each row's frames, tracks which rows are new, silent or first, and classifies
errors. An executor (:class:`antiphon.backends.base.DeviceRows`) computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import (
    FRAMES,
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    DeviceRows,
    FrameExecutor,
    IntArray,
    PageCount,
    PooledRows,
    PrimeProgress,
    Progress,
    PromptExecutor,
    RowSnapshot,
    StepInputs,
    StepOutputs,
    Work,
)
from antiphon.backends.page_pool import PagePool
from antiphon.backends.prompts import Primer, PromptedRows
from antiphon.backends.snapshots import CACHE_BYTES, size_of
from antiphon.errors import (
    AntiphonError,
    AudioError,
    BackendError,
    ConfigError,
    DeviceLostError,
    StepError,
    UnsupportedError,
)
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

OWN: Final = "host."
"""Prefix of the tensors that the host adds to a snapshot."""

CACHE_ROWS: Final = 16
"""Kept prompts and voices together take at most this number of rows' memory, and at most ``CACHE_BYTES``."""

FAILURES_IN_A_ROW: Final = 3
"""Number of consecutive failed steps that count as a fault of the device. A single step may fail because of
its input, which ends only the sessions of its rows.
"""


class ErrorClassifier:
    """Converts a framework's exceptions to the engine's errors: lost rows, or a lost device.

    ``with classifier.over(rows)`` is a block that uses ``rows``. ``probe`` does a little work on the device
    and raises if it fails. After a sticky CUDA error the probe fails, like every other later call.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        """Start with a working device."""
        self._probe = probe
        self._failures = 0
        self._rows: Sequence[int] | IntArray = ()

    def over(self, rows: Sequence[int] | IntArray) -> Self:
        """Name the rows that the next ``with`` block uses. Blocks are not nested."""
        self._rows = rows
        return self

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; errors of backends pass unchanged.

        Raises:
            StepError, DeviceLostError: the class of any other error.
        """
        if error is None:
            self._failures = 0
        elif isinstance(error, Exception) and not isinstance(error, BackendError):
            # Frameworks' exceptions have no other common base.
            raise self._classified(error, tuple(map(int, self._rows))) from error

    def _classified(self, error: Exception, rows: tuple[int, ...]) -> StepError | DeviceLostError:
        self._failures += 1
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if self._failures >= FAILURES_IN_A_ROW:
            return DeviceLostError(f"{self._failures} steps in a row failed, the last with {words}")
        try:
            self._probe()
        except Exception as probe_error:  # any error of the framework: its device does not respond
            return DeviceLostError(f"the device no longer answers after '{error}': {probe_error}")
        return StepError(f"a step over rows {list(rows)} failed: {words}", rows=rows)


E = TypeVar("E", bound=DeviceRows)


class RowHost(Generic[E]):
    """The common part of the hosts of all pipelines: properties, ages of rows, snapshots, faults, pages.

    ``tick_frames`` is the maximum number of frames that a tick adds to a row.
    """

    tick_frames: ClassVar[int] = 1

    def __init__(self, spec: ModelSpec, executor: E, *, slots: int, can_prime: bool = False) -> None:
        """Give an executor ``slots`` fresh rows.

        Raises:
            ConfigError: fewer than one slot.
        """
        self.executor = executor
        self._spec, self._can_prime = spec, can_prime
        self._errors = ErrorClassifier(executor.probe)
        self._take_rows(slots)

    def _take_rows(self, slots: int) -> None:
        check_slots(slots)
        self.executor.allocate(slots)
        self._frames: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._all: BoolArray = np.ones(slots, np.bool_)
        self._all.flags.writeable = False
        self._info = self._describe(slots)

    def _describe(self, slots: int) -> BackendInfo:
        facts, row_bytes = self.executor.facts, self.executor.state_bytes() // slots
        caches = min(CACHE_BYTES, CACHE_ROWS * row_bytes) if self._can_prime else 0
        memory = {"state_per_row": row_bytes, "caches": caches, **facts.memory}
        return replace(facts, slots=slots, can_prime=self._can_prime, memory=memory)

    @property
    def info(self) -> BackendInfo:
        """The backend's properties, which do not change once it is warm."""
        return self._info

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        """The number of rows that a tick over ``rows`` computes."""
        return self.executor.plan(rows, is_fixed=is_fixed)

    def warm_up(self, progress: Progress) -> None:
        """Run every shape that ticks can have, then make all rows fresh."""
        self.executor.warm_up(progress)
        self._info = self._describe(self._info.slots)
        self._begin(range(self._info.slots))

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; no effect for a codec."""
        check_row(self._info, row)
        self.executor.set_parameters(row, parameters)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state; the tensors remain on the device.

        Raises:
            StepError, DeviceLostError: as :meth:`step`.
        """
        check_row(self._info, row)
        with self._errors.over([row]):
            tensors = self.executor.snapshot(row)
            remembered = self._remembered(row)
        return RowSnapshot(self._info.name, {**tensors, **remembered}, size_of(tensors))

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Restore a row's state.

        Raises:
            UnsupportedError: a snapshot of another backend or model; the row is unchanged.
            StepError, DeviceLostError: as :meth:`step`.
        """
        check_row(self._info, row)
        check_snapshot(self._info, snapshot)
        own, remembered = _split(snapshot.tensors)
        missing = self._remembered(row).keys() - remembered.keys()
        if missing:
            raise UnsupportedError(f"the snapshot has no {min(missing)}")
        try:
            self._check(remembered)
            self.executor.check(own)
        except AntiphonError:
            raise
        except Exception as error:  # of any framework: they may come from another process
            raise UnsupportedError(f"the snapshot cannot be read: {error!r}") from error
        with self._errors.over([row]):
            self._begin([row])
            self.executor.restore(row, own)
            self._recall(row, remembered)

    def to_host(self, snapshot: RowSnapshot) -> dict[str, NDArray[Any]]:
        """Convert a snapshot to numpy arrays, bit by bit."""
        own, remembered = _split(snapshot.tensors)
        with self._errors.over(()):
            return {**self.executor.to_host(own), **remembered}

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> RowSnapshot:
        """Make a snapshot of the arrays that :meth:`to_host` returned, in this process or another."""
        own, remembered = _split(arrays)
        with self._errors.over(()):  # the device may have too little memory
            tensors = self.executor.from_host(own)
        return RowSnapshot(self._info.name, {**tensors, **remembered}, size_of(own))

    def _remembered(self, row: int) -> dict[str, Any]:
        """The host's part of a row's snapshot; names begin with "host."."""
        return {FRAMES: np.array(self._frames[row])}

    def _check(self, remembered: Mapping[str, Any]) -> None:
        """Raise UnsupportedError unless :meth:`_recall` can take these arrays."""
        frames = np.asarray(remembered[FRAMES])
        if frames.shape != () or frames.dtype != np.int64 or frames < 0:
            raise UnsupportedError(f"the snapshot's {FRAMES} is no count of frames")

    def _recall(self, row: int, remembered: Mapping[str, Any]) -> None:
        self._frames[row] = int(remembered[FRAMES])

    def _begin(self, rows: Sequence[int]) -> None:
        """Reset rows to fresh ones, bit for bit."""
        self.executor.reset(rows)
        self._frames[list(rows)] = 0

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return self.executor.state_bytes()

    def resize(self, slots: int) -> None:
        """Replace all rows by ``slots`` fresh rows; see :class:`antiphon.backends.base.Resizable`."""
        self._take_rows(slots)

    def choose_threads(self) -> None:
        """Measure with the current rows how ticks best use several threads; the choice outlasts every
        resize.
        """
        self.executor.choose_threads()

    def age(self, frames: int) -> None:
        """Make every row appear to have received ``frames`` frames; the content of its rings is unchanged."""
        self.executor.age(frames)
        self._frames[:] = frames

    def close(self) -> None:
        """Release the device."""
        self.executor.close()

    @property
    def _pool(self) -> PagePool | None:
        return self.executor.pool if isinstance(self.executor, PooledRows) else None

    def page_count(self) -> PageCount | None:
        """The numbers of free pages and of all pages; None if each row has its own pages."""
        pool = self._pool
        return None if pool is None else PageCount(pool.free, pool.pages)

    def make_room(self, rows: IntArray, reset: BoolArray) -> list[int]:
        """The rows that must end so that ``rows [m]`` have pages in the next tick, the youngest first."""
        if (pool := self._pool) is None:
            return []
        self._give_up(pool, rows[reset].tolist())
        frames = self._frames.copy()
        frames[rows[reset]] = 0
        ended = pool.youngest(rows, frames[rows] + self.tick_frames, frames)
        self._give_up(pool, ended)
        return ended

    def release(self, row: int) -> None:
        """Free the pages of a row whose call has ended."""
        if (pool := self._pool) is not None:
            self._give_up(pool, [row])

    def _give_up(self, pool: PagePool, rows: Sequence[int]) -> None:
        """Free pages; other rows write to them from now on."""
        pool.release(rows)


def _split(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separate the executor's tensors from the host's own."""
    remembered = {name: tensor for name, tensor in tensors.items() if name.startswith(OWN)}
    return {name: tensor for name, tensor in tensors.items() if name not in remembered}, remembered


class HostBackend(RowHost[FrameExecutor]):
    """A backend of a codec, duplex or stt model, whose rows an executor computes; see
    :class:`antiphon.backends.base.Backend`.
    """

    def __init__(self, spec: ModelSpec, executor: FrameExecutor, *, slots: int) -> None:
        """Give an executor ``slots`` fresh rows."""
        self._is_duplex, self._delay_frames = spec.kind is PipelineKind.DUPLEX, spec.delay_frames
        self._frame_samples = spec.frame_samples
        can_prime = self._is_duplex and isinstance(executor, PromptExecutor)
        super().__init__(spec, executor, slots=slots, can_prime=can_prime)

    def _take_rows(self, slots: int) -> None:
        self.primer: Primer | None = None
        super()._take_rows(slots)
        if self._can_prime and self._spec.lm is not None:
            rows = cast("PromptedRows", self.executor)
            self.primer = Primer(rows, self._spec.lm, self._info.memory["caches"])

    def _begin(self, rows: Sequence[int]) -> None:
        super()._begin(rows)
        if self.primer is not None:
            self.primer.forget(rows)

    def _give_up(self, pool: PagePool, rows: Sequence[int]) -> None:
        super()._give_up(pool, rows)
        if self.primer is not None:  # a half-read prompt starts again
            self.primer.forget(rows)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the named rows by one frame; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        rows, is_fresh, pcm = inputs.rows, inputs.reset, inputs.pcm
        assert pcm is not None
        if pcm.shape != (rows.size, self._frame_samples) or pcm.dtype != np.float32:
            wanted = [rows.size, self._frame_samples]
            raise AudioError(f"PCM is {pcm.dtype} {list(pcm.shape)}, but this step needs float32 {wanted}")
        has_fresh = np.count_nonzero(is_fresh) > 0
        if has_fresh and self.primer is not None:
            self.primer.forget(rows[is_fresh].tolist())
        with self._errors.over(rows):
            frames = self._frames[rows]
            if has_fresh:
                frames[is_fresh] = 0
            emitted = frames >= self._delay_frames
            # Upstream's codec forgets a duplex session's first frame once the model has received its codes
            # (``skip_frames`` of ``moshi/server.py``), and the next frame's codes depend on it.
            is_forgotten = (frames == 0) & self._is_duplex
            work = Work(rows, frames, is_fresh, is_forgotten, emitted, pcm, inputs.is_fixed)
            self._frames[rows] = frames + 1  # a step that fails for some rows has advanced the others
            result = self.executor.run(work)
        tokens = result.text_tokens
        if tokens is not None:
            tokens = np.where(emitted, tokens, np.int32(NO_TOKEN))
        return StepOutputs(
            self._all[: rows.size],
            emitted,
            result.pcm,
            tokens,
            result.vad,
            stage_ms=result.stage_ms,
        )

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        """Process one piece of a prompt; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if not self._is_duplex:
            raise UnsupportedError(f"a {self._spec.kind} model takes no prompt")
        if self.primer is None:
            raise UnsupportedError(
                f"the {self._info.name} backend takes no prompts (this one has {prompt.count} frames); "
                "torch does"
            )
        self.primer.check(prompt)
        with self._errors.over([row]):
            if not self.primer.is_reading(row, prompt):
                self._begin([row])
                self.primer.begin(row, prompt)
            progress = self.primer.advance(row)
        self._frames[row] = progress.done  # its age, in case a call has to end for lack of pages
        return progress


def check_inputs(info: BackendInfo, inputs: StepInputs) -> None:
    """Check the shapes and dtypes of one tick's input.

    Raises:
        UnsupportedError: rows that are not int32 ``[m]``, do not exist or are named twice, a reset that is
            not bool ``[m]``, or PCM or text that is missing or of the wrong kind.
    """
    check_rows(info, inputs.rows)
    count, reset, kind = inputs.rows.size, inputs.reset, info.spec.kind
    if reset.shape != (count,) or reset.dtype != np.bool_:
        raise UnsupportedError(
            f"reset is {reset.dtype} {list(reset.shape)}, but this step needs bool [{count}]"
        )
    if not kind.takes_audio:
        if inputs.pcm is not None or len(inputs.text) != count:
            raise UnsupportedError(f"a tts step over {count} rows needs {count} text tuples and no PCM")
        return
    if inputs.pcm is None or inputs.text:
        raise UnsupportedError(f"a {kind} step over {count} rows needs PCM and no text")


def check_rows(info: BackendInfo, rows: NDArray[np.generic]) -> None:
    """Check the row numbers of a tick: int32 ``[m]``, m at least 1, each in range and named once.

    Raises:
        UnsupportedError: they are not.
    """
    if rows.ndim != 1 or rows.dtype != np.int32 or not rows.size:
        found = f"{rows.dtype} {list(rows.shape)}"
        raise UnsupportedError(f"rows are {found}, but a step needs int32 [m], m at least 1")
    ordered = rows.copy()
    ordered.sort()
    if ordered[0] < 0 or ordered[-1] >= info.slots:
        raise UnsupportedError(
            f"a step over rows {ordered[0]} to {ordered[-1]}, "
            f"but backend {info.name} has rows 0 to {info.slots - 1}"
        )
    is_twice = ordered[1:] == ordered[:-1]
    if np.count_nonzero(is_twice):
        raise UnsupportedError(f"a step names row {ordered[1:][is_twice][0]} twice")


def check_row(info: BackendInfo, row: int) -> None:
    """Check that a row exists. Raises UnsupportedError when it does not."""
    if not 0 <= row < info.slots:
        raise UnsupportedError(
            f"row {row} does not exist, backend {info.name} has rows 0 to {info.slots - 1}"
        )


def check_snapshot(info: BackendInfo, snapshot: RowSnapshot) -> None:
    """Check that a snapshot came from a backend of the same name. Raises UnsupportedError otherwise."""
    if snapshot.backend != info.name:
        raise UnsupportedError(f"a snapshot of backend {snapshot.backend} cannot go into backend {info.name}")


def check_slots(slots: int) -> None:
    """Check a number of rows before a backend is made. Raises ConfigError when it is below 1."""
    if slots < 1:
        raise ConfigError(f"a backend needs at least 1 slot, not {slots}")

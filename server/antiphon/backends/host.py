"""The part of a tick of codec, duplex and stt models that is the same for every framework.

The host checks inputs, counts each row's frames, knows which rows are new, silent or first, and what an error
means. An executor (:mod:`antiphon.backends.executor`) computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.backends.base import (
    NO_TOKEN,
    BackendInfo,
    BoolArray,
    IntArray,
    PrimeProgress,
    Progress,
    RowSnapshot,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.checks import check_inputs, check_row, check_slots, check_snapshot
from antiphon.backends.executor import DeviceRows, FrameExecutor, PromptExecutor, Work
from antiphon.backends.faults import FaultJudge, Judging
from antiphon.backends.prompts import Primer, PromptedRows
from antiphon.backends.snapshots import CACHE_BYTES, size_of
from antiphon.errors import AntiphonError, UnsupportedError
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind

OWN: Final = "host."
"""Names of what the host itself adds to a snapshot begin so."""
FRAMES: Final = OWN + "frames"
"""In a snapshot: the frames the row has been given since its reset, int64."""

CACHE_ROWS: Final = 16
"""What is kept of prompts and voices takes at most as much as so many rows, and at most ``CACHE_BYTES``."""

E = TypeVar("E", bound=DeviceRows)


class RowHost(Generic[E]):
    """What hosts of all pipelines share: facts, rows' ages, snapshots, faults."""

    def __init__(self, spec: ModelSpec, executor: E, *, slots: int, can_prime: bool = False) -> None:
        """Give an executor ``slots`` fresh rows.

        Raises:
            ConfigError: less than one slot.
        """
        check_slots(slots)
        self.executor = executor
        self._spec, self._can_prime = spec, can_prime
        self._judge = FaultJudge(executor.probe)
        self._take_rows(slots)

    def _take_rows(self, slots: int) -> None:
        self.executor.allocate(slots)
        self._frames: NDArray[np.int64] = np.zeros(slots, np.int64)
        self._all: BoolArray = np.ones(slots, np.bool_)
        self._all.flags.writeable = False
        self._info = self._describe(slots)

    def _describe(self, slots: int) -> BackendInfo:
        facts, row_bytes = self.executor.facts, self.executor.state_bytes() // slots
        caches = min(CACHE_BYTES, CACHE_ROWS * row_bytes) if self._can_prime else 0
        return BackendInfo(
            name=facts.name,
            device=facts.device,
            spec=self._spec,
            slots=slots,
            dtype=facts.dtype,
            quantization=facts.quantization,
            can_prime=self._can_prime,
            versions=facts.versions,
            memory={"state_per_row": row_bytes, "caches": caches, **facts.memory},
            row_ms=facts.row_ms,
            device_name=facts.device_name,
            work=facts.work,
            threads=facts.threads,
        )

    @property
    def info(self) -> BackendInfo:
        """Facts that do not change once the backend is warm."""
        return self._info

    def plan(self, rows: IntArray, *, is_fixed: bool = False) -> int:
        """How many physical rows a tick over ``rows`` runs."""
        return self.executor.plan(rows, is_fixed=is_fixed)

    def warm_up(self, progress: Progress) -> None:
        """Run every shape that ticks may have, then make all rows fresh."""
        self.executor.warm_up(progress)
        self._info = self._describe(self._info.slots)
        self._begin(range(self._info.slots))

    def set_parameters(self, row: int, parameters: SamplingParameters) -> None:
        """Give a row its sampling parameters; a codec has no use for them."""
        check_row(self._info, row)
        self.executor.set_parameters(row, parameters)

    def snapshot(self, row: int) -> RowSnapshot:
        """Copy a row's state; the tensors stay on the device.

        Raises:
            StepError, DeviceLostError: as :meth:`step`.
        """
        check_row(self._info, row)
        with self._judging([row]):
            tensors = self.executor.snapshot(row)
            remembered = self._remembered(row)
        return RowSnapshot(self._info.name, {**tensors, **remembered}, size_of(tensors))

    def restore(self, row: int, snapshot: RowSnapshot) -> None:
        """Put a row's state back.

        Raises:
            UnsupportedError: a snapshot of another backend or model; the row is then as it was.
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
        except Exception as error:  # of whatever framework read them: they may come from another process
            raise UnsupportedError(f"the snapshot cannot be read: {error!r}") from error
        with self._judging([row]):
            self._begin([row])
            self.executor.restore(row, own)
            self._recall(row, remembered)

    def to_host(self, snapshot: RowSnapshot) -> dict[str, NDArray[Any]]:
        """A snapshot as numpy arrays, bit by bit."""
        own, remembered = _split(snapshot.tensors)
        with self._judging(()):
            return {**self.executor.to_host(own), **remembered}

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> RowSnapshot:
        """A snapshot from what :meth:`to_host` gave, here or in another process."""
        own, remembered = _split(arrays)
        with self._judging(()):  # the device may have no room for them
            tensors = self.executor.from_host(own)
        return RowSnapshot(self._info.name, {**tensors, **remembered}, size_of(own))

    def _remembered(self, row: int) -> dict[str, Any]:
        """What the host itself knows of a row, for a snapshot; names begin with "host."."""
        return {FRAMES: np.array(self._frames[row])}

    def _check(self, remembered: Mapping[str, Any]) -> None:
        """Raise UnsupportedError unless :meth:`_recall` can take this."""
        frames = np.asarray(remembered[FRAMES])
        if frames.shape != () or frames.dtype != np.int64 or frames < 0:
            raise UnsupportedError(f"the snapshot's {FRAMES} is no count of frames")

    def _recall(self, row: int, remembered: Mapping[str, Any]) -> None:
        self._frames[row] = int(remembered[FRAMES])

    def _begin(self, rows: Sequence[int]) -> None:
        """Make rows like fresh ones, bit for bit."""
        self.executor.reset(rows)
        self._frames[list(rows)] = 0

    def state_bytes(self) -> int:
        """Bytes of state for all rows."""
        return self.executor.state_bytes()

    def resize(self, slots: int) -> None:
        """Have ``slots`` fresh rows instead; see :class:`antiphon.backends.base.Resizable`."""
        check_slots(slots)
        self._take_rows(slots)

    def age(self, frames: int) -> None:
        """Let every row look as if it had been given so many frames; see :class:`Ageing` of ``base.py``."""
        self.executor.age(frames)
        self._frames[:] = frames

    def close(self) -> None:
        """Release the device."""
        self.executor.close()

    def _judging(self, rows: Sequence[int] | IntArray) -> Judging:
        """A block in which what a framework raises turns into the error the engine acts on."""
        return Judging(self._judge, rows)


def _split(tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the executor's, and what the host itself remembered."""
    remembered = {name: tensor for name, tensor in tensors.items() if name.startswith(OWN)}
    return {name: tensor for name, tensor in tensors.items() if name not in remembered}, remembered


class HostBackend(RowHost[FrameExecutor]):
    """A codec, duplex or stt model over rows of an executor; see :class:`antiphon.backends.base.Backend`."""

    def __init__(self, spec: ModelSpec, executor: FrameExecutor, *, slots: int) -> None:
        """Give an executor ``slots`` fresh rows."""
        can_prime = spec.kind is PipelineKind.DUPLEX and isinstance(executor, PromptExecutor)
        super().__init__(spec, executor, slots=slots, can_prime=can_prime)

    def _take_rows(self, slots: int) -> None:
        self._primer: Primer | None = None
        super()._take_rows(slots)
        if self._can_prime and self._spec.lm is not None:
            rows = cast("PromptedRows", self.executor)
            self._primer = Primer(rows, self._spec.lm, self._info.memory["caches"])

    def _begin(self, rows: Sequence[int]) -> None:
        super()._begin(rows)
        if self._primer is not None:
            self._primer.forget(rows)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Advance the named rows by one frame; see :meth:`antiphon.backends.base.Backend.step`."""
        check_inputs(self._info, inputs)
        assert inputs.pcm is not None
        rows, is_fresh = inputs.rows, inputs.reset
        has_fresh = np.count_nonzero(is_fresh) > 0
        if has_fresh and self._primer is not None:
            self._primer.forget(rows[is_fresh].tolist())
        with self._judging(rows):
            frames = self._frames[rows]
            if has_fresh:
                frames[is_fresh] = 0
            emitted = frames >= self._spec.delay_frames
            # Upstream's codec forgets a duplex session's first frame once the model has been given its codes
            # (``skip_frames`` of ``moshi/server.py``), and the next frame's codes depend on it.
            is_forgotten = (frames == 0) & (self._spec.kind is PipelineKind.DUPLEX)
            work = Work(rows, frames, is_fresh, is_forgotten, emitted, inputs.pcm, inputs.is_fixed)
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
        """One piece of a prompt; see :meth:`antiphon.backends.base.Backend.prime`."""
        check_row(self._info, row)
        if self._spec.kind is not PipelineKind.DUPLEX:
            raise UnsupportedError(f"a {self._spec.kind} model takes no prompt")
        if self._primer is None:
            raise UnsupportedError(
                f"the {self._info.name} backend takes no prompts (this one has {prompt.count} frames); "
                "torch does"
            )
        self._primer.check(prompt)
        with self._judging([row]):
            if not self._primer.is_reading(row, prompt):
                self._begin([row])
                self._primer.begin(row, prompt)
            progress = self._primer.advance(row)
        if progress.is_done:
            self._frames[row] = progress.total
        return progress

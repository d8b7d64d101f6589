"""Reads prompts, and copies states of rows, between two ticks in pieces of bounded size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from antiphon.backends.base import Backend, HostArray, PrimeProgress, RowSnapshot
from antiphon.engine.call_state import SavedState, copy_in, copy_out
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.row_entry import RowEntry
from antiphon.engine.rows import Rows
from antiphon.engine.values import RowPrimed, SavedRow, SaveRow
from antiphon.errors import (
    AntiphonError,
    HandOverError,
    SessionError,
    SessionFailedError,
    StepError,
    UnsupportedError,
)
from antiphon.log import Log
from antiphon.models.prompt import Prompt

PIECE_BYTES: Final = 16 << 20
"""Maximum number of bytes copied between two ticks, except for a larger single tensor: 2 ms at the 8 GB/s of
a slow bus.
"""


class PrimingQueue:
    """Leases with a prompt to read or a state to restore; used on the engine thread only.

    Leases alternate, one piece each. Each piece of a short prompt therefore waits for at most one piece of
    every other prompt, and the frame of an active call for one piece.
    """

    def __init__(self, backend: Backend, rows: Rows, metrics: EngineMetrics) -> None:
        """Start without leases."""
        self._backend, self._rows, self._metrics = backend, rows, metrics
        self.leases: deque[int] = deque()

    def add(self, lease: int) -> None:
        """Add a lease that has a new prompt."""
        if lease not in self.leases:
            self.leases.append(lease)

    def advance(self, now_s: float) -> bool:
        """Process one piece of the next prompt; false if there is none."""
        while self.leases:
            lease = self.leases.popleft()
            entry = self._rows.entry_or_none(lease)
            if entry is not None and entry.prompt is not None:
                self._advance(lease, entry, entry.prompt, now_s)
                return True
        return False

    def _advance(self, lease: int, entry: RowEntry, prompt: Prompt | SavedState, now_s: float) -> None:
        row = self._rows.row(lease, now_s)
        try:
            if (parameters := entry.new_parameters()) is not None:
                self._backend.set_parameters(row, parameters)
            self._rows.mark_used(lease)
            if isinstance(prompt, SavedState):
                progress = self._put_back(row, prompt)
            else:
                progress = self._backend.prime(row, prompt)
        except UnsupportedError as error:
            what = "continue from this state" if isinstance(prompt, SavedState) else "use this prompt"
            self._rows.fail(lease, SessionFailedError(f"the model cannot {what}: {error}"))
        except StepError as error:
            self._metrics.failed_steps.inc()
            Log(__name__).error("prompt failed", rows=sorted(error.rows), exc_info=error)
            self._rows.fail(lease, SessionFailedError(f"the model failed while it read the prompt: {error}"))
        else:
            if not progress.is_done:
                self.leases.append(lease)
                return
            if isinstance(prompt, Prompt):
                self._metrics.prompts["copied" if progress.is_copied else "computed"].inc()
            self._end(lease, entry, prompt, now_s)

    def _end(self, lease: int, entry: RowEntry, prompt: Prompt | SavedState, now_s: float) -> None:
        rows = self._rows
        if isinstance(prompt, SavedState) and prompt.lease is not None:
            lm = self._backend.info.spec.lm
            tokens = 0 if lm is None else lm.text_card
            try:
                copy_in(rows.arena, lease, prompt.lease, now_s, tokens=tokens)
            except Exception as error:  # a boundary: a bad state from another worker ends no tick
                rows.fail(lease, as_refusal(error))
                return
            rows.is_frozen[lease] = True  # until a connection resumes the call
        entry.prompt = None
        rows.is_primed[lease] = rows.has_update[lease] = True
        rows.events.append(RowPrimed(lease, entry.prompts, rows.used(lease).came))

    def _put_back(self, row: int, saved: SavedState) -> PrimeProgress:
        """Copy one piece of a state to the device; after the last piece the row is restored."""
        whole = RowSnapshot(self._backend.info.name, saved.arrays, 0)
        names = next_piece(whole, done=len(saved.tensors))
        part = self._backend.from_host({name: saved.arrays[name] for name in names})
        saved.tensors |= part.tensors
        done, total = len(saved.tensors), len(saved.arrays)
        if done == total:
            self._backend.restore(row, RowSnapshot(self._backend.info.name, saved.tensors, 0))
        return PrimeProgress(done, total)


class SavingQueue:
    """Leases whose row's state was requested. The engine thread uses it until it ends."""

    def __init__(self, backend: Backend, rows: Rows, clock: Callable[[], float]) -> None:
        """Start empty."""
        self._backend, self._rows, self._clock = backend, rows, clock
        self._snapshot: RowSnapshot | None = None  # of the first in the queue, once it has begun
        self._arrays: dict[str, HostArray] = {}

    def advance(self, now_s: float) -> None:
        """Copy one piece of the state that was requested first."""
        save, saves = self._rows.saves[0], self._rows.saves
        is_done = True
        if save.begin():
            try:
                is_done = self._advance(save, now_s)
            except AntiphonError as error:
                save.result.set_exception(error)
        if not is_done:
            return
        saves.popleft()
        self._snapshot, self._arrays = None, {}
        if save.lease is not None:
            self._rows.is_saving[save.lease] = any(it.lease == save.lease for it in saves)

    def fail(self) -> None:
        """Fail every request, because no tick follows."""
        for queue in (self._rows.changes, self._rows.saves):
            while queue:
                try:
                    save = queue.popleft()
                except IndexError:  # another thread's
                    break
                if isinstance(save, SaveRow) and save.begin():
                    error = SessionError("the engine ended before the row's state was saved")
                    save.result.set_exception(error)

    def _advance(self, save: SaveRow, now_s: float) -> bool:
        entry = None if save.lease is None else self._rows.entry_or_none(save.lease)
        if save.lease is None or entry is None or entry is not save.entry:
            raise SessionError("the session has no row whose state could be saved")
        if entry.prompt is not None:
            raise SessionError("the session still reads its prompt; save its row's state after that")
        if self._snapshot is None:
            if self._rows.is_fresh(save.lease):  # the row holds the state of its last session
                raise SessionError("the row has no state of this session yet; save it after its first frame")
            # Flush padding does not belong to the call.
            self._snapshot = entry.padding.kept or self._backend.snapshot(self._rows.row(save.lease, now_s))
            return False
        names = next_piece(self._snapshot, done=len(self._arrays))
        part = {name: self._snapshot.tensors[name] for name in names}
        self._arrays |= self._backend.to_host(RowSnapshot(self._snapshot.backend, part, 0))
        if len(self._arrays) < len(self._snapshot.tensors):
            return False
        used = self._rows.used(save.lease)
        lease = copy_out(self._rows.arena, save.lease, self._clock()) if save.is_leaving else {}
        save.result.set_result(SavedRow(self._arrays, lease, used, entry.is_new))
        return True


def next_piece(snapshot: RowSnapshot, *, done: int) -> list[str]:
    """The next tensors of a snapshot: at least one, and more while they fit into ``PIECE_BYTES``."""
    names: list[str] = []
    size = 0
    for name in list(snapshot.tensors)[done:]:
        size += int(getattr(snapshot.tensors[name], "nbytes", 0))
        if names and size > PIECE_BYTES:
            break
        names.append(name)
    return names


def as_refusal(error: Exception) -> AntiphonError:
    """The error that the worker which sends a call gets if this worker cannot accept the call."""
    if isinstance(error, AntiphonError):
        return error
    Log(__name__).error("call not accepted", exc_info=error)
    return HandOverError(f"the call could not be accepted: {error!r}")

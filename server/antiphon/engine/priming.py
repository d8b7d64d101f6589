"""Prompts and saved states on the engine thread: a bounded piece of one of them between any two ticks."""

from __future__ import annotations

from collections import deque

from antiphon.backends.base import Backend, PrimeProgress, RowSnapshot
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.row_state import SavedState
from antiphon.engine.rows import Rows
from antiphon.engine.saving import next_piece
from antiphon.engine.sessions import EngineSession
from antiphon.errors import SessionFailedError, StepError, UnsupportedError
from antiphon.log import Log
from antiphon.models.prompt import Prompt


class PrimingQueue:
    """Sessions that have a row and whose prompt is not read, or state not put back, yet.

    Only the engine thread touches it.

    They take turns, a piece each, so a long prompt holds up a short one by no more than the pieces of
    those who are there; and who talks already waits for one piece at most.
    """

    def __init__(self, backend: Backend, rows: Rows, metrics: EngineMetrics) -> None:
        """Begin with none."""
        self._backend = backend
        self._rows = rows
        self._metrics = metrics
        self._sessions: deque[EngineSession] = deque()

    def __len__(self) -> int:
        """Sessions whose prompt is not read yet."""
        return len(self._sessions)

    def add(self, session: EngineSession) -> None:
        """A session has got its row, or another prompt for it."""
        if session not in self._sessions:
            self._sessions.append(session)

    def advance(self, now_s: float) -> bool:
        """Do one piece of the next prompt; false when there is none (any more)."""
        while self._sessions:
            session = self._sessions.popleft()
            if self._advance(session, now_s):
                return True
        return False

    def _advance(self, session: EngineSession, now_s: float) -> bool:
        """One piece for one session; false when it has left."""
        piece = session.begin_priming()
        if piece is None:
            return False
        lease, prompt, parameters = piece
        row = self._rows.row(lease, now_s)
        try:
            if parameters is not None:
                self._backend.set_parameters(row, parameters)
            self._rows.mark_used(lease)
            if isinstance(prompt, SavedState):
                progress = self._put_back(row, prompt)
            else:
                progress = self._backend.prime(row, prompt)
        except UnsupportedError as error:
            what = "go on from this state" if isinstance(prompt, SavedState) else "be prompted like this"
            session.end(SessionFailedError(f"the model cannot {what}: {error}"))
            return True
        except StepError as error:
            self._metrics.failed_steps.inc()
            Log(__name__).error("prompt failed", rows=sorted(error.rows), exc_info=error)
            session.end(SessionFailedError(f"the model failed while it read the prompt: {error}"))
            return True
        if progress.is_done:
            if isinstance(prompt, Prompt):
                self._metrics.prompt(is_copied=progress.is_copied)
            if session.end_priming(lease, prompt):
                self._sessions.append(session)
        else:
            self._sessions.append(session)
        return True

    def _put_back(self, row: int, saved: SavedState) -> PrimeProgress:
        """One piece of a state to the device; after the last the row is restored."""
        whole = RowSnapshot(self._backend.info.name, saved.arrays, 0)
        names = next_piece(whole, done=len(saved.tensors))
        part = self._backend.from_host({name: saved.arrays[name] for name in names})
        saved.tensors |= part.tensors
        done, total = len(saved.tensors), len(saved.arrays)
        if done == total:
            self._backend.restore(row, RowSnapshot(self._backend.info.name, saved.tensors, 0))
        return PrimeProgress(done, total)

"""States of rows on their way out of the engine: read between ticks, a bounded piece at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from antiphon.backends.base import Backend, HostArray, RowSnapshot
from antiphon.engine.rows import Rows
from antiphon.engine.sessions import EngineSession
from antiphon.errors import AntiphonError, SessionError

PIECE_BYTES: Final = 16 << 20
"""Copied between two ticks at most, beyond a single tensor: 2 ms at the 8 GB/s of a slow bus."""


Beside: TypeAlias = Callable[[int], Mapping[str, HostArray]]
"""What goes out beside a row's state, of its lease."""


@dataclass(slots=True)
class _Save:
    """One session's state on its way out; ``snapshot`` is there from the second piece on."""

    session: EngineSession
    result: Future[dict[str, HostArray]]
    beside: Beside | None = None
    snapshot: RowSnapshot | None = None
    arrays: dict[str, HostArray] = field(default_factory=dict)
    is_begun: bool = False

    def begin(self) -> bool:
        """From here on the result cannot be cancelled; false where it was before."""
        if not self.is_begun:
            self.is_begun = self.result.set_running_or_notify_cancel()
        return self.is_begun


class SavingQueue:
    """Sessions whose row's state was asked for. The row is frozen until its state is out."""

    def __init__(self, backend: Backend, rows: Rows) -> None:
        """Begin with none."""
        self._backend, self._rows = backend, rows
        self._saves: deque[_Save] = deque()

    def __len__(self) -> int:
        """States that are not out yet."""
        return len(self._saves)

    def add(self, session: EngineSession, beside: Beside | None = None) -> Future[dict[str, HostArray]]:
        """Ask for a session's state; from any thread. The row takes no step until it is there.

        With ``beside``, which is called last of all, on the engine thread, it takes none afterwards either.
        """
        save = _Save(session, Future(), beside)
        session.freeze(is_frozen=True)
        self._saves.append(save)
        return save.result

    def advance(self, now_s: float) -> bool:
        """Copy one piece of the state that was asked for first; false when there is none."""
        if not self._saves:
            return False
        save = self._saves[0]
        is_done = True
        if save.begin():
            try:
                is_done = self._advance(save, now_s)
            except AntiphonError as error:
                save.result.set_exception(error)
        if is_done:
            self._saves.popleft()
            if save.beside is None and not any(it.session is save.session for it in tuple(self._saves)):
                save.session.freeze(is_frozen=False)
        return True

    def fail(self) -> None:
        """Every state that is not out fails. Called by any thread once the engine's has ended."""
        while self._saves:
            try:
                save = self._saves.popleft()
            except IndexError:  # another thread's
                return
            if save.begin():
                save.result.set_exception(SessionError("the engine ended before the row's state was saved"))

    def _advance(self, save: _Save, now_s: float) -> bool:
        lease = save.session.lease
        if lease is None or not self._rows.is_attached(lease):
            raise SessionError("the session has no row whose state could be saved")
        if save.session.is_priming:
            raise SessionError("the session still reads its prompt; save its row's state after that")
        if save.snapshot is None:
            if self._rows.is_fresh(lease):  # the row holds what its last session left there
                raise SessionError("the row has no state of this session yet; save it after its first frame")
            # Flush padding is no part of the call.
            save.snapshot = save.session.padding.kept or self._backend.snapshot(self._rows.row(lease, now_s))
            return False
        names = next_piece(save.snapshot, done=len(save.arrays))
        part = {name: save.snapshot.tensors[name] for name in names}
        save.arrays |= self._backend.to_host(RowSnapshot(save.snapshot.backend, part, 0))
        if len(save.arrays) < len(save.snapshot.tensors):
            return False
        if save.beside is not None:
            save.arrays |= save.beside(lease)
        save.result.set_result(save.arrays)
        return True


def next_piece(snapshot: RowSnapshot, *, done: int) -> list[str]:
    """The next tensors of a snapshot, at least one, and together at most ``PIECE_BYTES`` if more."""
    names: list[str] = []
    size = 0
    for name in list(snapshot.tensors)[done:]:
        size += int(getattr(snapshot.tensors[name], "nbytes", 0))
        if names and size > PIECE_BYTES:
            break
        names.append(name)
    return names

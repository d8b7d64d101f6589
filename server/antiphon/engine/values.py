"""The values that the control thread and the engine thread exchange, and the parts of a tick.

The control thread queues changes of rows; the engine thread applies them between two ticks and answers with
events. A change for a session that has a row is the message of its front end, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from numpy.typing import NDArray

from antiphon.backends.base import HostArray, StepInputs
from antiphon.engine.row_entry import RowAction, RowEntry
from antiphon.errors import AntiphonError
from antiphon.ipc.messages import CallRequest
from antiphon.ipc.rings import Counts, Times

EVERY: Final = slice(None)
"""Selects all positions of a tick; a slice copies no array."""


# Changes, which the engine thread applies in their order.


class AttachRow(NamedTuple):
    """A session has a lease: its row takes part in ticks from now on, and belongs to the engine thread."""

    lease: int
    entry: RowEntry


class UpdateRow(NamedTuple):
    """A front end's request for a lease, such as new parameters; frames do not come this way."""

    lease: int
    request: CallRequest


class FreezeRow(NamedTuple):
    """Freeze the row of a lease until it moves to another lease."""

    lease: int


class MoveRow(NamedTuple):
    """Move the row and all counters of one lease to another; ``entry`` has the other data.

    Available replies after ``frame`` are replayed: from ``text_frame`` on, and the last ``replay_frames``
    before it.
    """

    source: int
    target: int
    entry: RowEntry
    frame: int
    text_frame: int
    replay_frames: int


class DetachRow(NamedTuple):
    """The session of a lease has ended, and its row is free; the answer is ``RowDetached``."""

    lease: int


@dataclass(eq=False, slots=True)
class SaveRow:
    """Read the state of a row. The row takes no step until then, and none afterwards if ``is_leaving``.

    ``entry`` belongs to the session whose state is read, because the lease may have another session by then.
    """

    lease: int | None
    result: Future[SavedRow] = field(default_factory=Future)
    is_leaving: bool = False
    is_begun: bool = False
    entry: RowEntry | None = None

    def begin(self) -> bool:
        """Make the result impossible to cancel; false if it was cancelled."""
        if not self.is_begun:
            self.is_begun = self.result.set_running_or_notify_cancel()
        return self.is_begun


Change: TypeAlias = AttachRow | UpdateRow | FreezeRow | MoveRow | DetachRow | SaveRow


# Events.


class FramesUsed(NamedTuple):
    """The numbers of a call's frames that arrived, processed or not, and of replies to its connections."""

    came: int
    given: int


class SavedRow(NamedTuple):
    """A row's state and, for a call that moves to another worker, its lease's data.

    ``has_new_parameters``: the row does not have the session's parameters yet.
    """

    arrays: dict[str, HostArray]
    lease: Mapping[str, NDArray[Any]]
    used: FramesUsed
    has_new_parameters: bool


class RowDetached(NamedTuple):
    """The engine thread has released a lease."""

    lease: int


class RowBegun(NamedTuple):
    """The row of a lease holds state of its session from now on."""

    lease: int


class RowPrimed(NamedTuple):
    """The row of a lease has read the prompt, or the state, of this number; ``came`` is its number of
    frames.
    """

    lease: int
    number: int
    came: int


class RowFailed(NamedTuple):
    """The session of a lease cannot continue."""

    lease: int
    error: AntiphonError


class RowMoved(NamedTuple):
    """A ``MoveRow`` is done. The former lease had used ``used`` frames; the new one has ``given`` replies.

    ``replay_from`` is the first frame whose reply may still arrive.
    """

    source: int
    used: FramesUsed
    given: int
    replay_from: int


class FramesOverdue(NamedTuple):
    """The engine dropped frames unprocessed that were long overdue."""

    now_s: float
    frames: int


class EngineLost(NamedTuple):
    """The device, or code on the engine thread, has failed: there are no further ticks."""

    error: Exception


Event: TypeAlias = (
    RowDetached
    | RowBegun
    | RowPrimed
    | RowFailed
    | RowMoved
    | FramesOverdue
    | EngineLost
    | Callable[[], None]
)
"""An event, or a function that another thread runs on the control thread."""


# A tick.


class Tick(NamedTuple):
    """The sessions of one tick, each array ``[m]`` in one order.

    ``frame`` is the number of the session's frame, -1 for flush padding, and ``complete_s`` the time at which
    its last sample arrived. ``run`` is the run of flush padding, or NOT_PADDING.
    """

    leases: Counts
    frame: Counts
    complete_s: Times
    run: Counts
    inputs: StepInputs
    actions: tuple[tuple[int, RowAction], ...] = ()
    padding: int = 0
    """Number of sessions in the tick that process flush padding."""


class TickTimes(NamedTuple):
    """The times at which a tick's step started and ended."""

    start_s: float
    end_s: float

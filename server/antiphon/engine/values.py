"""What the control thread and the engine thread give each other, and the parts of a tick.

The control thread decides and puts changes of rows into a queue; the engine thread applies them between two
ticks and answers with what happened. A change about a session that has a row is the front end's own message.
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
"""Nearly always all places of a tick are chosen, and a slice copies no array."""


# Changes, which the engine thread applies in their order.


class AttachRow(NamedTuple):
    """A session has a lease: its row takes part in ticks from now on, and is the engine thread's."""

    lease: int
    entry: RowEntry


class UpdateRow(NamedTuple):
    """The front end of a lease requests something other than frames."""

    lease: int
    request: CallRequest


class FreezeRow(NamedTuple):
    """The row of a lease takes no step until another lease has it."""

    lease: int


class MoveRow(NamedTuple):
    """Another lease gets the row of one, and all that was heard and said; the rest is ``entry``.

    Replies after ``frame`` are to be taken again: those from ``told_frame`` on and ``replay_frames`` before
    the last, as far as they are there.
    """

    source: int
    target: int
    entry: RowEntry
    frame: int
    told_frame: int
    replay_frames: int


class DetachRow(NamedTuple):
    """The session of a lease has ended, and its row is free; ``RowDetached`` answers."""

    lease: int


@dataclass(eq=False, slots=True)
class SaveRow:
    """The state of a row is to be read; the row takes no step until then, and none after if ``is_leaving``.

    ``entry`` is that of the session whose state it is: another may have the lease before its turn comes.
    """

    lease: int | None
    result: Future[SavedRow] = field(default_factory=Future)
    is_leaving: bool = False
    is_begun: bool = False
    entry: RowEntry | None = None

    def begin(self) -> bool:
        """From here on the result cannot be cancelled; false where it was before."""
        if not self.is_begun:
            self.is_begun = self.result.set_running_or_notify_cancel()
        return self.is_begun


Change: TypeAlias = AttachRow | UpdateRow | FreezeRow | MoveRow | DetachRow | SaveRow


# What happened.


class FramesUsed(NamedTuple):
    """Frames of a call: how many came, heard or not yet, and how many replies its connections were given."""

    came: int
    given: int


class SavedRow(NamedTuple):
    """A row's state, and for a call that leaves what its lease holds.

    ``has_new_parameters``: the row does not have the session's parameters yet.
    """

    arrays: dict[str, HostArray]
    lease: Mapping[str, NDArray[Any]]
    used: FramesUsed
    has_new_parameters: bool


class RowDetached(NamedTuple):
    """The engine thread uses a lease no more."""

    lease: int


class RowBegun(NamedTuple):
    """The row of a lease holds something of its session from now on."""

    lease: int


class RowPrimed(NamedTuple):
    """The row of a lease has read the prompt, or has the state, of this number; ``came`` are its frames."""

    lease: int
    number: int
    came: int


class RowFailed(NamedTuple):
    """The session of a lease cannot continue."""

    lease: int
    error: AntiphonError


class RowMoved(NamedTuple):
    """A ``MoveRow`` is done, from a lease that had ``used`` frames to one with ``given`` replies.

    ``replay_from`` is the first frame whose reply may still come.
    """

    source: int
    used: FramesUsed
    given: int
    replay_from: int


class FramesOverdue(NamedTuple):
    """Frames that were dropped unheard, long overdue."""

    now_s: float
    frames: int


class EngineLost(NamedTuple):
    """The device, or code on the engine thread, has failed: no tick follows."""

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
"""A function is something that another thread wants the control thread to do."""


# A tick.


class Tick(NamedTuple):
    """The sessions of one tick, each array ``[m]`` in one order.

    ``frame`` is the session's number of the frame, -1 for flush padding; ``complete_s`` when its last
    sample arrived. ``run`` is the number of its silence, or NOT_PADDING.
    """

    leases: Counts
    frame: Counts
    complete_s: Times
    run: Counts
    inputs: StepInputs
    actions: tuple[tuple[int, RowAction], ...] = ()
    padding: int = 0
    """How many of them hear silence that the caller did not send."""


class TickTimes(NamedTuple):
    """When a tick's step started and ended."""

    start_s: float
    end_s: float

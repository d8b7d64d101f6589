"""One session's part in one tick."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from antiphon.engine.aside import Visit
from antiphon.engine.slots import Slot
from antiphon.models.sampling import SamplingParameters

if TYPE_CHECKING:
    from antiphon.engine.session import Session


class Lane(NamedTuple):
    """Whose frame, in which slot, and what the row needs before it.

    ``is_fresh``: the row still holds its last owner's state and must be reset. ``parameters`` are None
    when the row has them already. ``complete_s`` is when the frame's last sample had come. ``visit`` says
    whether the frame is the caller's, ``run`` which silence it belongs to when it is not.
    """

    session: Session
    slot: Slot
    frame: int
    complete_s: float
    is_fresh: bool
    parameters: SamplingParameters | None
    visit: Visit = Visit.LIVE
    run: int = 0


class TickTimes(NamedTuple):
    """When a tick's step started and ended."""

    start_s: float
    end_s: float

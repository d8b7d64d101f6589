"""The decisions of admission as values: the outcome for one caller, and its effect on others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from antiphon.errors import ServerFullError

C = TypeVar("C")


class AdmissionOutcome(StrEnum):
    """The state of a caller's request for a row."""

    ADMITTED = "admitted"  # at once
    QUEUED = "queued"  # waits
    PROMOTED = "promoted"  # waited, then got a row
    EXPIRED = "expired"  # waited as long as it would
    LEFT = "left"  # gave up while it waited
    FULL = "full"  # refused: rows and queue are taken
    LATE = "late"  # refused: deadlines are being missed
    DRAINING = "draining"  # refused, or sent away: the server is leaving


class RefusedError(ServerFullError):
    """A refusal with its outcome for the metrics, ``FULL`` or ``LATE``."""

    def __init__(self, message: str, *, retry_after_s: int, outcome: AdmissionOutcome) -> None:
        """Say no, with the seconds after which to try again and why it was no."""
        self.outcome = outcome
        super().__init__(message, retry_after_s=retry_after_s)


@dataclass(frozen=True, slots=True)
class Changes(Generic[C]):
    """What a decision changed for other callers, to be sent to them.

    ``promoted`` got a row, ``expired`` waited in vain (with the error to end them), ``moved`` wait still
    and are further ahead.
    """

    promoted: tuple[C, ...] = ()
    expired: tuple[tuple[C, ServerFullError], ...] = ()
    moved: tuple[C, ...] = ()


@dataclass(frozen=True, slots=True)
class Departure(Generic[C]):
    """A caller that was forgotten: whether it waited, how long it owned a row, and what that changed."""

    was_waiting: bool
    active_s: float | None
    changes: Changes[C]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Rows and queue at one moment. ``is_admitting``: a caller who came now would get a row at once."""

    active: int
    queued: int
    slots: int
    is_admitting: bool
    is_draining: bool

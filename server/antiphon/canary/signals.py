"""Signals of an ended call about the version that answered it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from typing import Final


class TrialArm(StrEnum):
    """The version that answers a call."""

    STABLE = "stable"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class CallSignals:
    """The faults of one call, each from 0 (none) to 1 (worst); None if not measured.

    ``late``: frames late or lost, in full at 5 %. ``silence``: too little is said, in full at nothing at all.
    ``repetition``: the part of its text that repeats itself. ``disagreement``: how far a recogniser's
    transcript of its audio differs from its text. ``hang_up``: the caller left within ten seconds.
    ``failure``: an error of the server ended it.
    """

    late: float | None = None
    silence: float | None = None
    repetition: float | None = None
    disagreement: float | None = None
    hang_up: float | None = None
    failure: float | None = None

    @property
    def values(self) -> tuple[float | None, ...]:
        """In the order of :data:`SIGNALS`."""
        return astuple(self)


SIGNALS: Final = tuple(each.name for each in fields(CallSignals))

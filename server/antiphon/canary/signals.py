"""Signals of an ended call about the version that answered it."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from typing import Final


class TrialArm(StrEnum):
    """The version of a model on trial that answers a call."""

    STABLE = "stable"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class CallSignals:
    """The faults of one call, each from 0 (none) to 1 (worst); None if not measured.

    ``late``: late or lost frames, 1 at 5 %. ``silence``: too little speech, 1 without any. ``repetition``:
    the share of the model's text that repeats itself. ``disagreement``: the difference between the model's
    text and a recogniser's transcript of the model's audio. ``hang_up``: the caller disconnected within ten
    seconds. ``failure``: the call ended with a server error.
    """

    late: float | None = None
    silence: float | None = None
    repetition: float | None = None
    disagreement: float | None = None
    hang_up: float | None = None
    failure: float | None = None

    @property
    def values(self) -> tuple[float | None, ...]:
        """The values in the order of :data:`SIGNALS`."""
        return astuple(self)


SIGNALS: Final = tuple(each.name for each in fields(CallSignals))

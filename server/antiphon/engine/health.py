"""How the engine is, for the two questions a supervisor asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Health:
    """The engine at one moment.

    ``alive``: the engine thread runs and its device is not lost. ``stuck_s``: how long the running step,
    with what goes before it, has been running, when that is longer than it may be, else 0. ``ready``: a
    caller who came now would be admitted at once. ``detail`` says in words what is wrong, or "ok".
    """

    alive: bool
    stuck_s: float
    ready: bool
    draining: bool
    active: int
    queued: int
    slots: int
    detail: str

    @property
    def is_healthy(self) -> bool:
        """Whether the process should be left running."""
        return self.alive and self.stuck_s == 0.0

"""The health of an engine: whether it works, and whether it admits callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an engine at one moment.

    ``alive``: the engine thread runs and its device is not lost. ``stuck_s``: seconds that the running step
    and its preparation have taken, once these exceed their limit, else 0. ``ready``: a new caller would be
    admitted at once. ``free`` is the number of callers that would be admitted. ``detail`` describes the
    fault, or is "ok".
    """

    alive: bool
    stuck_s: float
    ready: bool
    draining: bool
    active: int
    queued: int
    slots: int
    free: int
    detail: str

    @property
    def is_healthy(self) -> bool:
        """Whether the engine is alive and not stuck; otherwise its process has to be restarted."""
        return self.alive and self.stuck_s == 0.0


def as_one(each: Mapping[str, Health]) -> Health:
    """Combine the health of one model's engines, by device: alive if any engine is alive, and stuck only if
    no engine works.
    """
    if len(each) == 1:
        return next(iter(each.values()))
    whole = together(each)
    able = [health for health in each.values() if health.is_healthy]
    return replace(whole, alive=bool(able), stuck_s=0.0 if able else whole.stuck_s)


def together(each: Mapping[str, Health], *, needs_all: bool = False) -> Health:
    """Combine the health of engines by name: alive if all are; ready if any is, or with ``needs_all`` if all
    are. Faults carry the engine's name.

    With ``needs_all`` a caller takes a row of each engine, so the number of free rows is the smallest of
    them, not their sum.
    """
    if len(each) == 1:
        return next(iter(each.values()))
    healths = each.values()
    free = [health.free if health.ready else 0 for health in healths]
    wrong = [f"{name}: {health.detail}" for name, health in each.items() if not health.is_healthy]
    return Health(
        alive=all(health.alive for health in healths),
        stuck_s=max(health.stuck_s for health in healths),
        ready=(all if needs_all else any)(health.ready for health in healths),
        draining=all(health.draining for health in healths),
        active=sum(health.active for health in healths),
        queued=sum(health.queued for health in healths),
        slots=sum(health.slots for health in healths),
        free=min(free) if needs_all else sum(free),
        detail="; ".join(wrong) or "ok",
    )

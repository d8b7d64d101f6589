"""Resources of an engine for front ends in other processes: a pool of its leases each, and its wake-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from antiphon.engine.engine import Engine
from antiphon.engine.wake import EventWake
from antiphon.ipc.memory import NO_BELL, SharedArena
from antiphon.ipc.messages import pack_facts


class Pools:
    """The pools of a started engine that was made with ``pools`` and an ``EventWake``."""

    def __init__(self, name: str, engine: Engine) -> None:
        """Lend nothing yet; ``name`` is what front ends call the engine."""
        arena, wake = engine.rows.arena, engine.wake
        assert isinstance(arena, SharedArena)
        assert isinstance(wake, EventWake)
        self.engine = engine
        self._name, self._arena, self._wake = name, arena, wake

    def lend(self, pool: int, bell: int) -> tuple[dict[str, Any], list[int]]:
        """What a front end needs to know, and the descriptors of the memory and the wake-up.

        ``bell`` is an eventfd that is rung after ticks with its calls.
        """
        self._arena.slabs[pool].bell = bell
        plan = self._arena.plan
        facts = {
            "name": self._name,
            "facts": pack_facts(self.engine.info),
            "shape": asdict(plan.shape),
            "pools": plan.pools,
            "leases": plan.leases,
            "text_entries": self.engine.config.text_entries,
            "call_bytes": self.engine.call_bytes,
            "health": asdict(self.engine.health()),
        }
        return facts, [self._arena.descriptor, self._wake.descriptor]

    def take_back(self, pool: int) -> None:
        """Ring its bell no more, and wipe what its process may have written where no call was."""
        self._arena.slabs[pool].bell = NO_BELL
        self.engine.rows.leases.clean(pool)

    def first_lease(self, pool: int) -> int:
        """The engine's number of a pool's first lease."""
        return pool * self._arena.plan.leases

    def let_go(self, leases: Sequence[int]) -> None:
        """Front ends use these leases no more."""
        self.engine.rows.leases.let_go(leases)
        self.engine.wake.nudge()  # who waits for a lease may have one

"""State that all calls of one model share on the callers' side."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from antiphon.ipc.arena import Arena
from antiphon.ipc.rings import InputRings, OutputRings
from antiphon.ipc.sends import LatencyReport
from antiphon.models.spec import ModelSpec

T = TypeVar("T")

LOOKS: Final = 1000
"""An engine is between two of its counters for microseconds; one that died there is not waited for."""


class ClientContext:
    """What the callers' halves of one model share in a process: memory, rings, limits, where they report."""

    def __init__(
        self, spec: ModelSpec, arena: Arena, *, text_entries: int, deliveries: LatencyReport
    ) -> None:
        """The leases of ``arena`` are those that may be given."""
        self.spec, self.arena = spec, arena
        self.inputs, self.outputs = InputRings(arena), OutputRings(arena)
        self.text_entries, self.deliveries = text_entries, deliveries

    def consistently(self, read: Callable[[], T]) -> T:
        """What ``read`` returns when the engine's counters do not change meanwhile."""
        for _ in range(LOOKS):
            turn = self.arena.sequence
            if turn % 2 == 0:
                found = read()
                if self.arena.sequence == turn:
                    return found
            time.sleep(0)  # the engine thread is between two of its counters
        return read()

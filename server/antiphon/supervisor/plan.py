"""The plan of a supervisor: the processes to run, and their time limits."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.canary.trial import TrialRules
from antiphon.supervisor.connection_bounds import ConnectionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorPlan:
    """What is to run, and for how long anything may take.

    ``engine`` and ``front_end`` are commands that start a child, ``task`` is the first message each gets.
    ``leave_s`` is for one to end. ``announce`` gets the engine's description once callers can come. What the
    children have recorded goes into ``trace_file``. ``canary`` has the rules where a model is on trial.
    """

    engine: Sequence[str]
    front_end: Sequence[str]
    front_ends: int
    task: bytes
    listeners: Sequence[socket.socket]
    limits: ConnectionLimits
    counted_address: Callable[[str], str]
    announce: Callable[[Sequence[str]], None]
    drain_s: float
    leave_s: float
    trace_file: Path | None = None
    canary: TrialRules | None = None

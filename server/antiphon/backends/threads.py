"""The number of CPU threads for a model beside its server."""

from __future__ import annotations

from antiphon.cores import usable_cores
from antiphon.errors import ConfigError


def model_threads(asked: int | None = None) -> int:
    """As many as were asked for, or all cores that may be used but one, and at least one.

    Sockets and Opus run beside every step. With a thread on each core, a step's parallel parts wait for
    whichever of theirs was put aside meanwhile: beside one other busy process on two cores, a step of the
    built-in codec took 52 ms with two threads and 10 ms with one (medians, one row).

    Raises:
        ConfigError: fewer than one was asked for.
    """
    if asked is None:
        return max(1, usable_cores() - 1)
    if asked < 1:
        raise ConfigError(f"threads is {asked}; a model needs at least 1")
    return asked

"""The part of an executor whose state is numpy arrays in ordinary memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray


class HostArrays:
    """Part of :class:`antiphon.backends.executor.Rows`: snapshots are numpy's, and a CPU always answers."""

    def to_host(self, tensors: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """They are numpy's already."""
        return dict(tensors)

    def from_host(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """They stay numpy's."""
        return dict(arrays)

    def age(self, frames: int) -> None:
        """A tick takes as long for fresh rows."""

    def probe(self) -> None:
        """Errors of a device behind the arrays come back from every step, and the third in a row ends it."""

"""The null backend for tests: from a spec, with faults and clocks."""

from __future__ import annotations

from typing import Any

from antiphon.backends.host import HostBackend
from antiphon.backends.null import NullRows
from antiphon.models.spec import ModelSpec


class NullBackend(HostBackend):
    """``options`` are those of :class:`NullRows`."""

    def __init__(self, spec: ModelSpec, slots: int, **options: Any) -> None:
        self.rows = NullRows(spec, **options)
        super().__init__(spec, self.rows, slots=slots)

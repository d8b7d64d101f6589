"""Waits of tests for the thread that writes the usage file."""

from __future__ import annotations

import pytest

from tests.serve.harness import PATIENCE_S


@pytest.fixture(autouse=True)
def _a_slow_machine_is_no_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISK_S", "CLOSE_S"):
        monkeypatch.setattr(f"antiphon.serve.access.usage.{name}", PATIENCE_S)

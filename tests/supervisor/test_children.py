"""A child's process, and its exit code."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from antiphon.supervisor.children import Child


async def test_a_kill_reaps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the exit code of a process that has just ended could not be awaited."""
    monkeypatch.setattr(subprocess.Popen, "poll", lambda _: pytest.fail("reaped"))
    command = (sys.executable, "-c", "import time; time.sleep(60)")
    child = await Child.start("front-end-0", command, lambda *_: None)
    child.kill()
    assert await child.ended == -signal.SIGKILL
    assert child.failure == f"the front-end-0 process ended with {-signal.SIGKILL} before it was ready"
    child.kill()

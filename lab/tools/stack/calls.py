"""Calls that the probe makes through a server at any URL, and their results in one line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tools.stack.container_engine import StackError
from tests.support.launch import ANTIPHON

PATIENCE = ("--wait", "20", "--ready-timeout", "30")
ALL_HELD = ("--max-failed", "0", "--max-rejected", "0")
NONE_LOST = (*ALL_HELD, "--max-lost", "0")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class HeldCalls:
    """The results of calls that ran to their end."""

    sessions: int
    answered: int
    frames: int
    lost: int
    late: int
    p50_ms: float
    p99_ms: float
    first_sound_ms: float

    def __str__(self) -> str:
        return (
            f"{self.answered} of {self.sessions} calls, {self.frames} frames answered, {self.lost} lost, "
            f"{self.late} late, p50 {self.p50_ms:.0f} ms, p99 {self.p99_ms:.0f} ms"
        )


def call(
    url: str, folder: Path, *, sessions: int, seconds: float, limits: Sequence[str] = NONE_LOST
) -> HeldCalls:
    """Run ``sessions`` calls in real time; the probe's report is written to ``folder``.

    Raises:
        StackError: a limit was exceeded: a call was refused or failed, or a frame was lost.
    """
    file = folder / "probe.json"
    load = ("--sessions", str(sessions), "--seconds", str(seconds), "--insecure", "--quiet")
    command = [*ANTIPHON, "probe", url, *load, *PATIENCE, *limits, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise StackError(f"calls of {url}: {(done.stdout + done.stderr)[-2000:]}")
    report: dict[str, Any] = json.loads(file.read_text())["report"]
    counts, latency = report["counts"], report["times"]["latency"]
    return HeldCalls(
        sessions=report["sessions"],
        answered=report["answered"],
        frames=counts["answered"],
        lost=counts["lost"],
        late=counts["late"],
        p50_ms=latency["p50"],
        p99_ms=latency["p99"],
        first_sound_ms=report["ready_ms"]["p50"] + report["first_audio_ms"]["p50"],
    )

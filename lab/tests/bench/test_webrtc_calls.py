"""The measurement of calls by WebRTC: both kinds of call receive sound."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lab.bench.harness import running_server, serve_command
from lab.bench.webrtc_calls import KINDS, OPTIONS, measure


def test_calls_of_both_kinds_get_sound_and_cost_something(tmp_path: Path) -> None:
    with running_server(serve_command(*OPTIONS), tmp_path / "log") as server:
        for kind in KINDS:
            found = asyncio.run(measure(server, kind, 1, 0.5))
            assert found["packets_share"] > 0
            assert found["first_sound_ms"] > 0
            assert found["cpu_percent_a_call"] > 0

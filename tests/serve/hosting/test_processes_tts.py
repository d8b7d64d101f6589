"""Stock flows of every kind of model with two front ends."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from tests.serve.process import ROOM, START_S, children_of, run
from tests.support.calm import PROBE, SERVE

pytestmark = pytest.mark.product  # servers as processes, attacks, or thousands of examples

PROBES_S = 300.0
LIMITS = ("--sessions", "2", "--quiet", "--max-lost", "0", "--max-failed", "0")


def maps_onnxruntime(pid: int) -> bool:
    """Whether a process has loaded what runs models."""
    return "onnxruntime" in Path(f"/proc/{pid}/maps").read_text()


async def test_conversation_recogniser_and_synthesiser_over_two_front_ends(tmp_path: Path) -> None:
    models = (word for name in ("tiny", "tiny-stt", "tiny-tts") for word in ("--model", name))
    record = ("--record", str(tmp_path / "calls"))
    server = await run(*SERVE, "--port", "0", "--front-ends", "2", "--slots", "2", *ROOM, *record, *models)
    try:
        assert server.stdout is not None
        url = ""
        async with asyncio.timeout(2 * START_S):
            while not url:
                line = (await server.stdout.readline()).decode()
                assert line
                found = re.search(r"http://\S+", line)
                url = found[0] if found else ""
        for protocol in ("chat", "stt", "tts"):
            words = ("--protocol", protocol)
            stock = ("--stock",) if protocol == "chat" else ()
            async with asyncio.timeout(PROBES_S):
                probe = await run(*PROBE, url, *LIMITS, *words, *stock)
                out, err = await probe.communicate()
            assert probe.returncode == 0, f"{protocol}: {out.decode()}{err.decode()}"
        processes = children_of(server.pid)
        assert len(processes) == 3
        for pid, command in processes.items():
            assert maps_onnxruntime(pid) is ("engine_process" in command)
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(START_S):
            _, log = await server.communicate()
        assert server.returncode == 0
        assert "Traceback" not in log.decode()
    finally:
        if server.returncode is None:
            server.kill()
            await server.communicate()

"""The step "sockets" of ``lab.bench.gpu_session``: calls over WebSockets, in PCM, from another process of the
same machine, on a server whose model has random weights.

    python -m lab.bench.gpu_sockets --port 8998 --batch 64         the server alone

The server is that of ``antiphon serve``, with its network in the engine's process; its model says nothing in
words. It needs the server's packages (aiohttp, av, msgpack) and psutil.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.backends import null
from antiphon.backends.base import StepInputs, StepOutputs
from lab.bench.gpu_card import Task, Values, make_backend
from lab.bench.gpu_paced import COUNTED_S, SETTLE_S, SMALL_COUNTED_S, SMALL_SETTLE_S, Filling, quantiles

PADDING = 3
"""A text token without a piece of text."""


class Silent(Filling):
    """A backend whose rings are filled some seconds after its first step, and which outputs no words."""

    def __init__(self, task: Task) -> None:
        """Make the backend."""
        super().__init__(make_backend(task), task.size.lm["context"])
        settle_s = SMALL_SETTLE_S if task.is_small else SETTLE_S
        self._later: threading.Timer | None = threading.Timer(settle_s / 2, self.is_due.set)

    def step(self, inputs: StepInputs) -> StepOutputs:
        """Run one tick; the first one starts the time until rings are filled."""
        if self._later is not None:
            self._later.daemon = True
            self._later.start()
            self._later = None
        outputs = super().step(inputs)
        assert outputs.text_tokens is not None
        return outputs._replace(text_tokens=np.full_like(outputs.text_tokens, PADDING))


def sockets(task: Task) -> Values:
    """Run ``task.batch`` calls with full rings; returns quantiles of the time from sending a frame to its
    answer."""
    try:
        from lab.bench.front_end_load import FRAME_S, Talkers
        from lab.bench.harness import running_server
    except ImportError as error:
        return {"left_out": str(error)}

    async def talk(url: str) -> Talkers:
        talkers = Talkers(url, task.batch)
        running = asyncio.create_task(talkers.run())
        await asyncio.sleep(settle_s + counted_s)
        talkers.is_over = True
        await running
        return talkers

    settle_s, counted_s = (SMALL_SETTLE_S, SMALL_COUNTED_S) if task.is_small else (SETTLE_S, COUNTED_S)
    words = ["--batch", str(task.batch), "--model", task.model, *["--small"] * task.is_small]
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(
            lambda port: [sys.executable, "-m", __name__, "--port", str(port), *words],
            Path(scratch) / "server.log",
        ) as server,
    ):
        talkers = asyncio.run(talk(server.url))
    end_s = max(sent_s for sent_s, _ in talkers.frames)
    latencies_s = np.array([took_s for sent_s, took_s in talkers.frames if sent_s >= end_s - counted_s])
    return {
        "calls": task.batch,
        "frames": latencies_s.size,
        "unanswered": talkers.sent - len(talkers.frames),
        "cut": talkers.cut,
        "late": int((latencies_s > FRAME_S).sum()),
        "latency_ms": quantiles(1000 * latencies_s),
    }


def main(argv: Sequence[str]) -> int:
    """Run the server until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.gpu_sockets")
    parser.add_argument("--port", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--model", default="moshi-7b")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(argv)

    def make(_checkpoint: object, *, slots: int, **_options: Any) -> Any:
        return Silent(Task(options.model, slots, options.small, Path()))

    vars(null)["make"] = make
    from antiphon.cli import run  # after the change

    words = ["--backend", "null", "--model", "tiny", "--slots", str(options.batch), "--port", options.port]
    return run(["serve", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An engine on a fake backend in a separate process: ``python -m tests.ipc.engine_process JSON FD...``.

Each descriptor is the engine's end of a front end's control socket. SIGUSR1 drains; it ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from antiphon.backends.base import StepInputs, StepOutputs
from antiphon.engine.engine import Engine
from antiphon.engine.front_ends import FrontEndServer
from antiphon.engine.loop import EventWake
from antiphon.engine.metrics import EngineMetrics
from antiphon.errors import StepError
from antiphon.models.spec import PipelineKind
from tests.engine.fakes import MODEL, FakeBackend, fake_spec
from tests.support.calm import calm

BROKEN = -99.0
"""A frame that begins so makes its row fail."""


class StepBackend(FakeBackend):
    """A fake that takes its time, and fails for rows that hear :data:`BROKEN`."""

    def __init__(self, kind: PipelineKind, slots: int, step_ms: float) -> None:
        super().__init__(fake_spec(kind), slots)
        self._step_s = step_ms / 1000.0

    def step(self, inputs: StepInputs) -> StepOutputs:
        time.sleep(self._step_s)
        outputs = super().step(inputs)
        if inputs.pcm is not None and (broken := np.flatnonzero(inputs.pcm[:, 0] == BROKEN)).size:
            raise StepError("a broken frame", rows=inputs.rows[broken].tolist())
        return outputs


def make_engine(facts: dict[str, Any], *, pools: int | None) -> Engine:
    """A started engine: ``kind``, ``slots``, ``step_ms``, and fields of its configuration."""
    more = dict(facts)
    kind, slots = PipelineKind(more.pop("kind", "codec")), more.pop("slots", 4)
    backend = StepBackend(kind, slots, more.pop("step_ms", 0.0))
    engine = Engine(
        backend,
        calm(**{"least_tick_ms": 0.0, **more}),
        metrics=EngineMetrics(CollectorRegistry(), model=MODEL),
        pools=pools,
        wake=None if pools is None else EventWake(),
    )
    engine.start()
    return engine


async def serve(engine: Engine, controls: Sequence[socket.socket]) -> None:
    """Serve front ends until the end of stdin."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, engine.drain)
    loop.add_reader(sys.stdin, over.set)
    server = FrontEndServer({MODEL: engine}, loop)
    for pool, control in enumerate(controls):
        server.add(pool, control)
    while not over.is_set():
        server.watch_front_ends()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.25)
    engine.stop(5.0)
    server.stop()
    server.close()


def main() -> None:
    facts, *descriptors = sys.argv[1:]
    engine = make_engine(json.loads(facts), pools=len(descriptors))
    asyncio.run(serve(engine, [socket.socket(fileno=int(it)) for it in descriptors]))


if __name__ == "__main__":
    main()

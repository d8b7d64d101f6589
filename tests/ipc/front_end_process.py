"""A front end whose calls check their replies: ``python -m tests.ipc.front_end_process FD JSON``.

It says "ready" once its calls have begun, and at the end what it counted, as JSON. Each of ``calls`` sends
frames, ``pace_s`` apart, for ``seconds``, or for longer on a machine so slow that they were fewer than
``least``; with ``frames`` it hangs up after so many, and calls again.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from antiphon.ipc.engine_client import EnginePort, connect
from antiphon.ipc.values import SessionState
from antiphon.models.sampling import SamplingParameters
from tests.engine.echo import Frames
from tests.engine.fakes import MODEL

LEAST_FRAMES = 50
"""Of each call; in real time they take half a second."""

COUNTS = ("frames_in", "frames_out", "lost", "dropped_in", "dropped_out", "late")


class Talk:
    """One caller after another, and what all of them counted."""

    def __init__(self, port: EnginePort, facts: dict[str, Any], owner: int) -> None:
        self._port, self._owner = port, owner
        self._pace_s, self._frames = facts["pace_s"], facts.get("frames", sys.maxsize)
        self._least = facts.get("least", LEAST_FRAMES)
        self.totals = dict.fromkeys((*COUNTS, "checked", "calls"), 0)
        self._pushed = 0

    async def run(self, end_s: float) -> None:
        while time.monotonic() < end_s or self._pushed < self._least:
            await self._call(end_s)

    async def _call(self, end_s: float) -> None:
        news = asyncio.Event()
        session = await self._port.submit(SamplingParameters(), wait_s=120.0, notify=news.set)
        while session.state is not SessionState.ACTIVE:
            news.clear()
            await news.wait()
        self.totals["calls"] += 1
        frames = Frames(self._owner * 10_000 + self.totals["calls"])
        for number in range(self._frames):
            if time.monotonic() >= end_s and self._pushed >= self._least:
                break
            self._pushed += 1
            session.push(frames.make(number), time.monotonic())
            await asyncio.sleep(self._pace_s)
            for reply in session.take():
                assert reply.pcm is not None
                frames.check(reply.frame, reply.pcm)
                session.sent(reply, time.monotonic())
        async with asyncio.timeout(120.0):
            while not session.is_idle:
                news.clear()
                for reply in session.take():
                    assert reply.pcm is not None
                    frames.check(reply.frame, reply.pcm)
                await asyncio.sleep(0.001)
        assert session.error is None
        session.close()
        stats = asdict(session.stats())
        for name in COUNTS:
            self.totals[name] += stats[name]
        self.totals["checked"] += frames.checked


async def main() -> None:
    facts = json.loads(sys.argv[2])
    port = (await connect(socket.socket(fileno=int(sys.argv[1]))))[MODEL]
    talks = [Talk(port, facts, facts["owner"] + call) for call in range(facts["calls"])]
    end_s = time.monotonic() + facts["seconds"]
    tasks = [asyncio.create_task(talk.run(end_s)) for talk in talks]
    while not all(talk.totals["calls"] for talk in talks):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.gather(*tasks)
    sys.stdout.write(json.dumps({name: sum(talk.totals[name] for talk in talks) for name in talks[0].totals}))


if __name__ == "__main__":
    asyncio.run(main())

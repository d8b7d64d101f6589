"""Resume through another front end, after a dead one or by choice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.serve.harness import PATIENCE_S, speech
from tests.serve.live_resuming import ResumingLiveCaller
from tests.serve.process import front_ends, serve_process
from tests.serve.resuming import IN_FLIGHT_FRAMES, QUERY, ResumingCaller, assert_same
from tests.support.null_models import DUPLEX

pytestmark = pytest.mark.product
FRAMES = 120
CALLS = 32
CUTS = (10, 35, 60, 85)
WHOLE = (FRAMES, FRAMES - DUPLEX.delay_frames)
SEEDS = "&text_seed=5&audio_seed=7"
OPTIONS = ("--slots", "40", "--front-ends", "2", "--fixed-batch")


def caller_of(http: object, url: str) -> ResumingCaller:
    address = f"{url}/api/chat?{QUERY}{SEEDS}"
    return ResumingCaller(http, address, speech(FRAMES))  # type: ignore[arg-type]


def live_caller_of(http: object, url: str) -> ResumingLiveCaller:
    caller = ResumingLiveCaller(
        http,  # type: ignore[arg-type]
        url,
        speech(FRAMES),
        model=DUPLEX.name,
        delay_frames=DUPLEX.delay_frames,
    )
    caller.sends_until = 40 + IN_FLIGHT_FRAMES
    return caller


def used(usage: Path) -> list[tuple[int, int]]:
    """Frames heard and said of each call, over all of its connections."""
    frames: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for line in usage.read_text().rpartition("\n")[0].splitlines():  # the last may be on its way
        record = json.loads(line)
        heard, said = (round(record[name] / 0.08) for name in ("seconds_in", "seconds_out"))
        frames[record["session"]] = frames[record["session"]][0] + heard, frames[record["session"]][1] + said
    return list(frames.values())


async def test_a_front_end_is_killed_under_sixteen_calls_and_sixteen_resume(tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    async with serve_process(*OPTIONS, "--usage", str(usage), spec="DUPLEX") as server:
        whole = caller_of(server.http, server.url)
        await whole.run()
        live = [live_caller_of(server.http, server.url) for _ in range(2)]
        speaking = [asyncio.ensure_future(caller.run()) for caller in live]
        for session in live:  # each front end has one
            await session.until_answered(40)
        callers = [caller_of(server.http, server.url) for _ in range(CALLS)]
        for caller in callers:
            caller.sends_until = 40
        running = [asyncio.ensure_future(caller.run()) for caller in callers]
        for caller in callers:
            await caller.until_answered(40)
        os.kill(front_ends(server)[0], signal.SIGKILL)
        for caller in callers:
            caller.go_on()
        await asyncio.gather(*(session.go_on() for session in live))
        await asyncio.gather(*running, *speaking)
        async with asyncio.timeout(PATIENCE_S):  # what the killed one could not record is in other records
            while Counter(used(usage)) != {WHOLE: 1 + CALLS + len(live)}:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
    resumed = [caller for caller in callers if caller.thread.resumptions]
    assert len(resumed) == CALLS // 2
    assert len("".join(whole.heard.text)) > FRAMES
    for caller in callers:
        assert_same(caller, whole)
    assert sorted(len(session.resumed) for session in live) == [0, 1]
    for session in live:
        starts, numbers = [it["start_ms"] for it in session.words], [frame for frame, _ in session.audio]
        assert session.failed == []
        assert len(starts) > FRAMES // 2
        assert (starts, numbers) == (sorted(set(starts)), sorted(set(numbers)))


async def test_calls_that_are_cut_go_on_through_any_front_end() -> None:
    async with serve_process(*OPTIONS, spec="DUPLEX") as server:
        whole = caller_of(server.http, server.url)
        await whole.run()
        callers = [caller_of(server.http, server.url) for _ in range(4)]
        for caller in callers:
            caller.sends_until = CUTS[0] + IN_FLIGHT_FRAMES  # else it ends before its cut
        running = [asyncio.ensure_future(caller.run()) for caller in callers]
        for at, following in zip(CUTS, (*CUTS[1:], FRAMES), strict=True):
            for caller in callers:
                await caller.until_answered(at)
                caller.cut()
                caller.go_on(until=following + IN_FLIGHT_FRAMES)
        await asyncio.gather(*running)
    for caller in callers:
        assert caller.thread.resumptions == len(CUTS)
        assert_same(caller, whole)

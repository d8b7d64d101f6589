"""Runs many probe sessions on one event loop, and measures the wake-up delay of the loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp

from antiphon_client.api_key import NO_KEY, ApiKey
from antiphon_client.clip import EncodedClip
from antiphon_client.cutting import CutSession
from antiphon_client.encoding import FRAME_SAMPLES, SAMPLE_RATE
from antiphon_client.session import ProbeSession, ProbeState, SessionPlan, SessionResult

RAMP_S_PER_SESSION = 0.01
"""Seconds between the connects of two sessions, so that a hundred upgrades do not arrive at once."""

GRACE_S = 2.0
"""Seconds that a real-time session waits for its last replies."""

CONNECT_TIMEOUT_S = 10.0
WATCH_INTERVAL_S = 0.05
PROGRESS_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class ProbeLoad:
    """Sessions to run, all with the same clip. ``verifies_tls`` is off for self-signed certificates."""

    plans: tuple[SessionPlan, ...]
    clip: EncodedClip
    verifies_tls: bool = True
    api_key: ApiKey = NO_KEY


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a load: sessions by state, and frames."""

    speaking: int = 0
    closed: int = 0
    frames_sent: int = 0
    frames_answered: int = 0

    @classmethod
    def of(cls, sessions: Sequence[ProbeSession]) -> Progress:
        """The progress of ``sessions``."""
        return cls(
            speaking=sum(session.state is ProbeState.SPEAKING for session in sessions),
            closed=sum(session.state is ProbeState.CLOSED for session in sessions),
            frames_sent=sum(session.recorder.frames_sent for session in sessions),
            frames_answered=sum(session.recorder.frames_answered for session in sessions),
        )

    def __add__(self, other: Progress) -> Progress:
        """The sum of two progress counts."""
        return Progress(
            speaking=self.speaking + other.speaking,
            closed=self.closed + other.closed,
            frames_sent=self.frames_sent + other.frames_sent,
            frames_answered=self.frames_answered + other.frames_answered,
        )


OnProgress: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Result of one event loop's part of a load: CPU and wall time, and each wake-up delay of the loop."""

    results: tuple[SessionResult, ...]
    cpu_s: float
    wall_s: float
    loop_late_ms: tuple[float, ...]


def spread(
    url: str,
    sessions: int,
    *,
    seed: int,
    delay_frames: int = 0,
    is_extended: bool = True,
    ready_timeout_s: float = 10.0,
    keeps_audio: bool = False,
    is_transcript: bool = False,
    unpaced_grace_s: float | None = None,
    cut_every_s: float = 0.0,
) -> tuple[SessionPlan, ...]:
    """Make plans for ``sessions`` sessions at random phases; the first session keeps its audio if requested.

    With ``unpaced_grace_s`` sessions send at full speed, and then wait this long for the last replies.
    """
    chance = random.Random(seed)
    ramp_s = sessions * RAMP_S_PER_SESSION
    return tuple(
        SessionPlan(
            session=session,
            url=url,
            connect_after_s=chance.uniform(0, ramp_s) if sessions > 1 else 0.0,
            phase_s=chance.uniform(0, FRAME_SAMPLES / SAMPLE_RATE),
            is_extended=is_extended,
            delay_frames=delay_frames,
            ready_timeout_s=ready_timeout_s,
            keeps_audio=keeps_audio and session == 0,
            is_transcript=is_transcript,
            is_unpaced=unpaced_grace_s is not None,
            cut_every_s=cut_every_s,
            grace_s=GRACE_S if unpaced_grace_s is None else unpaced_grace_s,
        )
        for session in range(sessions)
    )


class Stop:
    """A request to end early, which a signal handler may set before or while a loop runs."""

    def __init__(self) -> None:
        """Start without a request to end."""
        self.is_set = False

    def set(self) -> None:
        """Request the end."""
        self.is_set = True


async def run_share(
    load: ProbeLoad, *, on_progress: OnProgress, stop: Stop, clock: Callable[[], float]
) -> LoopReport:
    """Run the sessions of ``load`` on this event loop."""
    start_s, start_cpu_s = clock(), time.process_time()
    sessions = [
        (CutSession if plan.cut_every_s else ProbeSession)(plan, load.clip, start_s=start_s, clock=clock)
        for plan in load.plans
    ]
    late_ms: list[float] = []
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=load.verifies_tls),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        headers=load.api_key.headers,
    ) as http:
        watch = asyncio.ensure_future(_watch(sessions, late_ms, on_progress, stop, clock))
        try:
            results = await asyncio.gather(*(session.run(http) for session in sessions))
        finally:
            watch.cancel()
    on_progress(Progress.of(sessions))
    return LoopReport(tuple(results), time.process_time() - start_cpu_s, clock() - start_s, tuple(late_ms))


async def _watch(
    sessions: Sequence[ProbeSession],
    late_ms: list[float],
    on_progress: OnProgress,
    stop: Stop,
    clock: Callable[[], float],
) -> None:
    """Measure the loop's wake-up delay, pass on a request to stop, and report the progress."""
    reported_s = clock()
    while True:
        asleep_s = clock()
        await asyncio.sleep(WATCH_INTERVAL_S)
        now_s = clock()
        late_ms.append((now_s - asleep_s - WATCH_INTERVAL_S) * 1000)
        if stop.is_set:
            for session in sessions:
                session.stop()
        if now_s - reported_s >= PROGRESS_INTERVAL_S:
            reported_s = now_s
            on_progress(Progress.of(sessions))

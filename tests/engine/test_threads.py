"""A control thread and an engine thread under random callers."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Generator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.engine import Engine
from antiphon.engine.loop import EventWake, Wake
from antiphon.engine.metrics import EngineMetrics
from antiphon.errors import ServerFullError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Calls, frames, pcm_of
from tests.engine.fakes import MODEL, FakeBackend, fake_spec
from tests.support.calm import calm

LEAST_S = 3.0
MOST_S = 240.0
CALLERS = 8
SPREAD = 1000
CONFIG = calm(input_frames=4, output_frames=6, max_queue=4)


class Stress:
    """One caller after the other, each checking every reply against what it said; a step at a time."""

    def __init__(self, calls: Calls, seed: int) -> None:
        self.calls = calls
        self.random = random.Random(seed)
        self.base = seed * SPREAD
        self.replies = self.sessions = self.refused = 0
        self.references: list[weakref.ref[Session]] = []

    def run(self) -> Generator[None]:
        while True:
            yield from self.call()

    def call(self) -> Generator[None]:
        try:
            session = self.calls.submit(
                SamplingParameters(text_seed=self.base), wait_s=self.random.choice([0, 0.02])
            )
        except ServerFullError:
            self.refused += 1
            yield
            return
        self.sessions += 1
        self.references.append(weakref.ref(session))
        said, last_frame, last_taken = 0, -1, 0
        for _ in range(self.random.randrange(1, 30)):
            if session.state is SessionState.ACTIVE:
                count = self.random.choice([1, 1, 1, 2, 5])
                session.push(
                    frames(*(self.base + (said + i) % SPREAD for i in range(count))), time.monotonic()
                )
                said += count
            if self.random.random() < 0.05:
                last_frame = max(last_frame, session.flush() - 1)
            if self.random.random() < 0.7:
                yield
            for reply in session.take():
                value, taken, _, seed, _ = pcm_of(reply)[:5].tolist()
                assert value == self.base + reply.frame % SPREAD
                assert seed == self.base
                assert reply.frame > last_frame
                assert taken > last_taken
                last_frame, last_taken = reply.frame, taken
                self.replies += 1
                session.sent(reply, time.monotonic())
            stats = session.stats()
            assert stats.queue_frames <= CONFIG.input_frames
            assert stats.reply_frames <= CONFIG.output_frames
            assert stats.lost == 0
            if session.state is SessionState.CLOSED:
                assert isinstance(session.error, ServerFullError)
                return
        session.close()


def test_no_frame_goes_astray_and_nothing_is_left_behind() -> None:
    """The control thread and the engine thread, with more callers than rows."""
    backend = FakeBackend(slots=5)
    backend.during_step = lambda: time.sleep(0.0005)
    metrics = EngineMetrics(CollectorRegistry(), model=MODEL)
    engine = Engine(backend, CONFIG, metrics=metrics)
    engine.start()
    calls = Calls(engine, is_started=True)
    callers = [Stress(calls, seed) for seed in range(1, CALLERS + 1)]
    running = [caller.run() for caller in callers]

    def is_enough() -> bool:
        return sum(it.replies for it in callers) > 100 and sum(it.sessions for it in callers) > 50

    begun_s = time.monotonic()
    while (spent_s := time.monotonic() - begun_s) < LEAST_S or (spent_s < MOST_S and not is_enough()):
        backend.steps.clear()  # the fake remembers everything
        for one in running:
            next(one)
            calls.turn()
        calls.turn(0.002)
    assert is_enough()
    for one in running:
        one.close()
    calls.hang_up()
    calls.until(lambda: (engine.health().active, engine.health().queued) == (0, 0))
    assert engine.health().alive
    assert engine.stop(30.0)
    del running
    gc.collect()
    alive = [reference for caller in callers for reference in caller.references if reference() is not None]
    assert len(alive) <= CALLERS, "a session that left is forgotten by the engine"


def test_stopping_while_callers_speak_ends_them_all() -> None:
    backend = FakeBackend(slots=4)
    backend.during_step = lambda: time.sleep(0.001)
    engine = Engine(backend, CONFIG, metrics=EngineMetrics(CollectorRegistry(), model=MODEL))
    engine.start()
    calls = Calls(engine, is_started=True)
    sessions = [calls.submit() for _ in range(4)]
    end_s = time.monotonic() + 0.1
    while time.monotonic() < end_s:
        for session in sessions:
            session.push(frames(1), time.monotonic())
        calls.turn(0.0005)
    assert engine.stop(30.0)
    calls.until(lambda: all(session.state is SessionState.CLOSED for session in sessions))
    assert backend.closed


@pytest.mark.parametrize(("kind", "is_paced"), [(PipelineKind.CODEC, True), (PipelineKind.STT, False)])
def test_short_ticks_of_live_calls_are_paced_and_recordings_are_not(
    kind: PipelineKind, is_paced: bool
) -> None:
    pause_s = 0.04 if is_paced else 10.0  # so much longer than a tick that the machine's speed is no matter
    config = calm(input_frames=12, output_frames=12, least_tick_ms=1000 * pause_s)
    metrics = EngineMetrics(CollectorRegistry(), model=MODEL)
    engine = Engine(FakeBackend(fake_spec(kind)), config, metrics=metrics)
    engine.start()
    session = Calls(engine, is_started=True).submit()
    begun_s = time.monotonic()
    session.push(frames(*range(12)), begun_s)
    while session.reply_frames < 12:
        time.sleep(0.001)
    spent_s = time.monotonic() - begun_s
    assert engine.stop(30.0)
    assert (spent_s > 11 * pause_s) is is_paced, spent_s


def test_a_prompt_is_read_without_pauses() -> None:
    config = calm(least_tick_ms=10_000.0)
    metrics = EngineMetrics(CollectorRegistry(), model=MODEL)
    engine = Engine(FakeBackend(fake_spec(PipelineKind.DUPLEX)), config, metrics=metrics)
    engine.start()
    begun_s = time.monotonic()
    calls = Calls(engine, is_started=True)
    session = calls.submit(prompt=Prompt(np.ones((12, 2), np.int32)))
    calls.until(lambda: session.state is SessionState.ACTIVE)
    assert time.monotonic() - begun_s < 110
    assert engine.stop(30.0)


@pytest.mark.parametrize("kind", [Wake, EventWake])
def test_a_wake_up_that_comes_before_the_sleep_is_not_lost(kind: type[Wake]) -> None:
    wake = kind()
    wake.nudge()
    sleeper = threading.Thread(target=wake.wait, args=[None], daemon=True)
    sleeper.start()
    sleeper.join(MOST_S)
    assert not sleeper.is_alive()

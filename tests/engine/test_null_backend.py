"""The engine on the null backend: replies match their input, complete and in order."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.backends.null import WordArray, extend_history, hash_frames
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.ipc.values import SessionState
from antiphon.models.spec import PipelineKind
from tests.backends.subjects import null_spec
from tests.engine.bench import Calls
from tests.support.calm import calm
from tests.support.null_backend import NullBackend
from tests.support.stamp import read_stamp

CALLERS = 10
SLOTS = 8
SECONDS = 2.0
PATIENCE_S = 60.0


class Caller:
    """Calls again and again, a few frames each, one frame ahead of its replies at most."""

    def __init__(self, calls: Calls, engine: Engine, seed: int, until_s: float) -> None:
        self.calls, self.engine = calls, engine
        self.random = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.until_s = until_s
        self.frames = 0
        self.lives: list[int] = []

    def run(self) -> Iterator[bool]:
        """Call until the time is over; the control thread, which is this one, takes a turn at each yield."""
        while time.monotonic() < self.until_s:
            yield from self.call()

    def call(self) -> Iterator[bool]:
        spec = self.engine.info.spec
        session = self.calls.submit(wait_s=30.0)
        while session.state is SessionState.QUEUED:
            yield False
        history: WordArray = np.zeros(1, np.uint32)
        lives: set[int] = set()
        for index in range(self.random.randrange(1, 12)):
            frame = self.noise.standard_normal(spec.frame_samples, np.float32)
            history = extend_history(history, hash_frames(frame[None]))
            cut = self.random.randrange(spec.frame_samples)
            session.push(frame[:cut], time.monotonic())
            session.push(frame[cut:], time.monotonic())
            if index < spec.delay_frames:
                continue
            while not (replies := session.take()):
                assert session.error is None
                yield False
            (reply,) = replies
            assert reply.pcm is not None
            stamp = read_stamp(reply.pcm)
            assert reply.frame == stamp.frame == index
            assert (stamp.frame_hash, stamp.history) == (hash_frames(frame[None])[0], history[0])
            lives.add(stamp.life)
            self.frames += 1
        assert session.stats().lost == 0
        session.close()
        assert len(lives) <= 1, "one session, one life of its row"
        self.lives += lives


@pytest.mark.parametrize("kind", [PipelineKind.CODEC, PipelineKind.DUPLEX])
def test_many_callers_on_few_rows_hear_all_of_their_own_and_nothing_else(kind: PipelineKind) -> None:
    metrics = EngineMetrics(CollectorRegistry(), model="null")
    engine = Engine(NullBackend(null_spec(kind), SLOTS, step_ms=0.5), calm(), metrics=metrics)
    engine.start()
    calls, until_s = Calls(engine, is_started=True), time.monotonic() + SECONDS
    callers = [Caller(calls, engine, seed, until_s) for seed in range(CALLERS)]
    running = [caller.run() for caller in callers]
    while running:
        assert time.monotonic() < until_s + PATIENCE_S
        running = [caller for caller in running if not next(caller, True)]
        calls.turn(0.001)
    assert engine.health().active == 0
    assert engine.stop(5.0)
    lives = [life for caller in callers for life in caller.lives]
    assert len(lives) == len(set(lives)), "no two sessions shared a life of a row"
    assert sum(caller.frames for caller in callers) > 200
    assert metrics.registry.get_sample_value("antiphon_lost_frames_total", {"model": "null"}) == 0

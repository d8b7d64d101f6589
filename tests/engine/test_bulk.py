"""Sessions fed and read as arrays are answered, counted and ended as sessions one by one are."""

from __future__ import annotations

import random
import re

import numpy as np
from prometheus_client import generate_latest

from antiphon.backends.base import FloatArray
from antiphon.engine.bulk import BulkOwner
from antiphon.engine.config import EngineConfig
from antiphon.errors import SessionFailedError, StepError
from antiphon.ipc.arena import RING_BOUNDS
from antiphon.ipc.session import Session
from antiphon.models.sampling import SamplingParameters
from tests.engine.bench import Bench, frames, heard
from tests.engine.fakes import FRAME, FRAME_S, FakeBackend

CONFIG = EngineConfig(input_frames=4, output_frames=6)
SESSIONS = 3
Answers = list[list[tuple[int, list[float], float]]]


def submit(bench: Bench, count: int = SESSIONS) -> list[Session]:
    return [bench.engine.submit(SamplingParameters(), wait_s=0, notify=None) for _ in range(count)]


def whole(values: list[float]) -> FloatArray:
    return np.repeat(np.array(values, np.float32)[:, None], FRAME, axis=1)


def answers_by_bulk(bench: Bench, owner: BulkOwner, sent_s: float) -> Answers:
    answers: Answers = [[] for _ in range(SESSIONS)]
    while (taken := owner.take()).place.size:
        owner.sent(taken, sent_s)
        found = taken.replies
        assert found.pcm is not None
        for place, frame, pcm, times in zip(
            taken.place.tolist(), found.frame.tolist(), found.pcm.tolist(), found.times.tolist(), strict=True
        ):
            answers[place].append((frame, pcm, times[2]))
    return answers


def answers_one_by_one(sessions: list[Session], sent_s: float) -> Answers:
    answers: Answers = []
    for session in sessions:
        replies = session.take()
        for reply in replies:
            session.sent(reply, sent_s)
        answers.append(
            [
                (reply.frame, [] if reply.pcm is None else reply.pcm.tolist(), reply.complete_s)
                for reply in replies
            ]
        )
    return answers


def metrics_of(bench: Bench) -> list[str]:
    lines = generate_latest(bench.registry).decode().splitlines()
    return [line for line in lines if not re.search("_created|stage_seconds", line)]


def test_a_bulk_owner_is_many_sessions() -> None:
    choice = random.Random(3)
    one, many = (Bench(FakeBackend(slots=SESSIONS), config=CONFIG) for _ in range(2))
    sessions, bulk_sessions = submit(one), submit(many)
    owner = many.engine.bulk(bulk_sessions)
    said = 0.0
    for _ in range(300):
        places = np.array([place for place in range(SESSIONS) if choice.random() < 0.6], np.int64)
        values = [said := said + 1 for _ in places]
        owner.push(places, whole(values), many.clock())
        for place, value in zip(places.tolist(), values, strict=True):
            sessions[place].push(frames(value), one.clock())
        for bench in (one, many):
            bench.clock.advance(FRAME_S / 2)
        if choice.random() < 0.5:
            assert one.ticks() == many.ticks()
        if choice.random() < 0.4:
            assert answers_by_bulk(many, owner, many.clock()) == answers_one_by_one(sessions, one.clock())
    stats = [session.stats() for session in sessions]
    assert owner.out.tolist() == [it.frames_out for it in stats]
    assert owner.late.tolist() == [it.late for it in stats]
    assert owner.dropped_out.tolist() == [it.dropped_out for it in stats]
    assert owner.late.any(), "the test has seen what it compares"
    assert owner.dropped_out.any()
    assert metrics_of(many) == metrics_of(one)
    late = [bench.engine._pressure.count(bench.clock()) for bench in (one, many)]
    assert late[0] == late[1]


def test_frames_that_find_no_slot_are_refused_alike() -> None:
    one, many = (Bench(config=CONFIG) for _ in range(2))
    (session,), bulk_sessions = submit(one, 1), submit(many, 1)
    owner = many.engine.bulk(bulk_sessions)
    place = np.zeros(1, np.int64)
    count = RING_BOUNDS * CONFIG.input_frames + 2
    for value in range(count):
        session.push(frames(value), one.clock())
        owner.push(place, whole([value]), many.clock())
    for bench in (one, many):
        bench.ticks()
        bench.push(bench_session := submit(bench, 1)[0], 1)  # another's frames are not in the way
        bench.ticks()
        assert heard(bench_session.take()) == [1]
    found = answers_by_bulk(many, owner, many.clock())[0]
    assert found == answers_one_by_one([session], one.clock())[0]
    assert [frame for frame, _, _ in found] == [4, 5, 6, 7], "the ring holds the first 8, the bound drops 4"
    assert owner.refused.tolist() == [2]
    assert metrics_of(many) == metrics_of(one)


def test_a_session_that_fails_is_left_out_and_its_successor_is_not_touched() -> None:
    bench = Bench(FakeBackend(slots=1), config=CONFIG)
    sessions = submit(bench, 1)
    owner = bench.engine.bulk(sessions)
    place = np.zeros(1, np.int64)
    owner.push(place, whole([1.0]), bench.clock())
    bench.backend.failures.append(StepError("broken", rows=frozenset([0])))
    bench.ticks()
    assert isinstance(sessions[0].error, SessionFailedError)
    for value in (5.0, 6.0):
        successor = bench.submit()
        bench.push(successor, value)
        owner.push(place, whole([99.0]), bench.clock())
        bench.ticks()
        assert owner.take().place.size == 0
        assert heard(successor.take()) == [value]
        successor.close()
    assert owner.is_open.tolist() == [False]


def test_a_reader_that_is_overtaken_reads_on_where_replies_are_whole() -> None:
    bench = Bench(config=CONFIG)
    owner = bench.engine.bulk(submit(bench, 1))
    outputs = bench.engine.rows.outputs
    place = np.zeros(1, np.int64)
    read = outputs.read

    def tick_on(*args: object) -> object:
        outputs.read = read  # type: ignore[method-assign]
        found = read(*args)  # type: ignore[arg-type]
        for value in range(2, 4 + RING_BOUNDS * CONFIG.output_frames):
            owner.push(place, whole([value]), bench.clock())
            bench.ticks()
        return found

    owner.push(place, whole([1]), bench.clock())
    bench.ticks()
    outputs.read = tick_on  # type: ignore[method-assign, assignment]
    assert owner.take().place.size == 0, "what was read has been overwritten meanwhile"
    frames_read = [frame for frame, _, _ in answers_by_bulk(bench, owner, bench.clock())[0]]
    newest = 2 + RING_BOUNDS * CONFIG.output_frames
    assert frames_read == list(range(newest - CONFIG.output_frames + 1, newest + 1))
    assert owner.dropped_out.tolist() == [newest - CONFIG.output_frames + 1]


def test_what_is_let_go_is_used_no_more() -> None:
    bench = Bench(FakeBackend(slots=1), config=CONFIG)
    sessions = submit(bench, 1)
    owner = bench.engine.bulk(sessions)
    owner.let_go()
    owner.push(np.zeros(1, np.int64), whole([1.0]), bench.clock())
    assert bench.ticks() == 0
    sessions[0].close()
    assert bench.engine.bulk(sessions).is_open.tolist() == [False], (
        "one that has closed is none from the start"
    )

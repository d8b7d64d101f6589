"""The facade: start, submit, queue, drain, stop, health, metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import SETTLE_S, Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.engine.values import RowBegun
from antiphon.errors import BackendError, ConfigError, DrainingError, ServerFullError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from tests.engine.bench import Bench, Calls, frames, heard
from tests.engine.fakes import FRAME_S, MODEL, FakeBackend, FakeClock


class Notice:
    """A notify that can be waited for."""

    def __init__(self, calls: Calls) -> None:
        self.is_set, self.calls = False, calls

    def __call__(self) -> None:
        self.is_set = True

    def wait(self) -> None:
        self.calls.until(lambda: self.is_set)
        self.is_set = False


@contextmanager
def started(
    backend: FakeBackend, config: EngineConfig | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Engine]:
    metrics = EngineMetrics(CollectorRegistry(), model=MODEL)
    engine = Engine(backend, config or EngineConfig(), clock=clock, metrics=metrics)
    engine.start()
    try:
        yield engine
    finally:
        assert engine.stop(30.0)


def submit(calls: Calls, notice: Notice | None = None, *, wait_s: float = 0.0) -> Session:
    return calls.submit(wait_s=wait_s, notify=notice)


def next_replies(session: Session, notice: Notice) -> list[float]:
    """What the next replies echo, once there are any."""
    while not (replies := session.take()):
        notice.wait()
    return heard(replies)


def test_start_warms_up_on_the_engine_thread_and_reports_progress() -> None:
    backend = FakeBackend()
    threads: list[str] = []
    engine = Engine(backend, EngineConfig(), metrics=EngineMetrics(CollectorRegistry(), model=MODEL))
    engine.start(lambda done, total, what: threads.append(threading.current_thread().name))
    assert threads == ["antiphon-engine"]
    assert backend.warmed
    assert engine.info is backend.info
    assert engine.health().alive
    assert engine.stop(5.0)
    assert backend.closed
    assert not engine.health().alive
    assert engine.health().detail == "the engine thread is not running"


def test_start_raises_what_the_backend_raises() -> None:
    def broken(slots: int) -> FakeBackend:
        raise BackendError(f"no device for {slots} rows")

    engine = Engine(broken, EngineConfig(slots=3), metrics=EngineMetrics(CollectorRegistry(), model=MODEL))
    with pytest.raises(BackendError, match="no device for 1 rows"):
        engine.start()
    assert engine.stop(1.0)


def test_a_frame_goes_round_on_the_engine_thread() -> None:
    with started(FakeBackend()) as engine:
        calls = Calls(engine, is_started=True)
        notice = Notice(calls)
        session = submit(calls, notice)
        for value in range(5):
            session.push(frames(value), engine.clock())
            assert next_replies(session, notice) == [value]
        session.close()
        assert engine.health().active == 0


def test_a_queued_caller_is_told_when_its_wait_is_over_while_the_engine_is_idle() -> None:
    with started(FakeBackend(slots=1)) as engine:
        calls = Calls(engine, is_started=True)
        submit(calls)
        notice = Notice(calls)
        waiting = submit(calls, notice, wait_s=0.05)
        calls.until(lambda: waiting.state is SessionState.CLOSED)
        assert isinstance(waiting.error, ServerFullError)
        assert str(waiting.error).startswith("no row became free within the 0.05 s this caller would wait")
        assert engine.health().queued == 0


def test_a_caller_may_wait_longer_than_any_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with started(FakeBackend(slots=1)) as engine:
        calls = Calls(engine, is_started=True)
        first = submit(calls)
        notice, waits_s, wait = Notice(calls), set[float | None](), engine.wake.wait

        def noted(timeout_s: float | None) -> bool:
            waits_s.add(timeout_s)
            return wait(timeout_s)

        monkeypatch.setattr(engine.wake, "wait", noted)
        waiting = submit(calls, notice, wait_s=1e12)
        calls.until(lambda: threading.TIMEOUT_MAX in waits_s)
        first.close()
        calls.until(lambda: waiting.state is SessionState.ACTIVE)
        waiting.push(frames(7), engine.clock())
        assert next_replies(waiting, notice) == [7]


def test_a_queued_caller_gets_the_row_of_one_that_leaves() -> None:
    with started(FakeBackend(slots=1)) as engine:
        calls = Calls(engine, is_started=True)
        first = submit(calls)
        notice = Notice(calls)
        waiting = submit(calls, notice, wait_s=60.0)
        first.close()
        calls.until(lambda: waiting.state is SessionState.ACTIVE)
        waiting.push(frames(7), engine.clock())
        assert next_replies(waiting, notice) == [7]


def test_a_row_that_became_free_under_pressure_is_given_when_that_has_fallen() -> None:
    """Its owner leaves while the engine thread sleeps until the other's wait is over; a third stays."""
    config = EngineConfig(late_min_frames=1, late_window_s=1.0)
    with started(FakeBackend(slots=2), config) as engine:
        calls = Calls(engine, is_started=True)
        submit(calls)
        first = submit(calls)
        first.push(frames(7), engine.clock())
        calls.until(lambda: first.reply_frames)
        (reply,) = first.take()
        time.sleep(2 * FRAME_S)
        first.sent(reply, engine.clock())
        assert first.stats().late == 1
        waiting = submit(calls, wait_s=1000.0)
        time.sleep(0.1)  # the thread is asleep again
        first.close()
        calls.until(lambda: waiting.state is SessionState.ACTIVE)


def test_many_events_of_the_engine_thread_are_handled_over_several_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, handled, turns = Bench(), list[object](), list[int]()
    events = [RowBegun(lease) for lease in range(10)]

    def handle(event: object) -> None:
        handled.append(event)
        bench.clock.advance(0.4 * SETTLE_S)

    monkeypatch.setattr(bench.engine.sessions, "handle", handle)
    bench.engine.controlled_by(lambda: turns.append(len(handled)))
    bench.engine.rows.events.extend(events)
    while len(handled) < len(events):
        bench.engine.settle()
    assert (handled, turns) == (events, [3, 6, 9])


def test_positions_are_told_as_the_queue_moves() -> None:
    bench = Bench(FakeBackend(slots=1))
    active = bench.submit()
    told: list[str] = []
    one, two, three = (
        bench.submit(wait_s=60, notify=partial(told.append, name)) for name in ("one", "two", "three")
    )
    assert [s.position for s in (active, one, two, three)] == [None, 0, 1, 2]
    assert [s.retry_after_s for s in (one, two)] == [120, 240]
    told.clear()
    one.close()
    assert told == ["two", "three", "one"]
    assert [s.position for s in (one, two, three)] == [None, 0, 1]
    assert bench.read("admissions_total", outcome="left") == 1


def speak(bench: Bench, sessions: Sequence[Session], seconds: float) -> None:
    """Everybody speaks at the pace of real time, hears what comes, and the engine ticks when it can."""
    assert isinstance(bench.clock, FakeClock)
    next_s = bench.clock() + FRAME_S
    end_s = bench.clock() + seconds
    while bench.clock() < end_s:
        while next_s <= bench.clock():
            for session in sessions:
                session.push(frames(1), next_s)
            next_s += FRAME_S
        if not bench.tick():
            bench.clock.advance(FRAME_S / 8)
        for session in sessions:
            for reply in session.take():
                session.sent(reply, bench.clock())


@pytest.mark.parametrize(("callers", "step_s"), [(1, 0.1), (1, 0.25), (1, 3.0), (4, 0.9), (4, 4.0)])
def test_admission_stops_however_slow_the_steps_and_few_the_answers(callers: int, step_s: float) -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=8, clock=clock, step_s=lambda rows: step_s), clock=clock)
    sessions = [bench.submit() for _ in range(callers)]
    speak(bench, sessions, 12.0)
    assert not bench.engine.health().ready
    with pytest.raises(ServerFullError, match="frames were late"):
        bench.submit()


def test_admission_goes_on_while_steps_are_in_time() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=8, clock=clock, step_s=lambda rows: 0.035), clock=clock)
    speak(bench, [bench.submit() for _ in range(4)], 12.0)
    assert bench.engine.health().ready
    bench.submit()


def test_admission_stops_while_the_first_slow_step_still_runs() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=8, clock=clock, step_s=lambda rows: 0.5), clock=clock)
    session = bench.submit()
    seen: list[bool] = []
    bench.backend.during_step = lambda: seen.append(bench.engine.health().ready)
    bench.push(session, 1)
    bench.tick()
    assert seen == [False]


def test_a_flood_shuts_out_nobody() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=8, clock=clock, step_s=lambda rows: 0.035), clock=clock)
    flooder = bench.submit()
    for _ in range(200):
        flooder.push(frames(*range(40)), clock())
        bench.tick()
        for reply in flooder.take():
            flooder.sent(reply, clock())
    assert flooder.stats().dropped_in > 1000
    assert bench.engine.health().ready


def test_waits_end_and_pressure_falls_with_time_alone() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=2), clock=clock)
    busy = bench.submit()
    for value in range(20):
        bench.push(busy, value)
        bench.tick()
        (reply,) = busy.take()
        clock.advance(2 * FRAME_S)
        busy.sent(reply, clock())
    assert busy.stats().late == 20
    assert not bench.engine.health().ready
    with pytest.raises(ServerFullError, match=r"100\.0 % of the last 20 frames were late"):
        bench.submit()
    waiting = bench.submit(wait_s=60.0)
    clock.advance(1)
    bench.tick()
    assert bench.engine.health().queued == 1
    clock.advance(10)
    bench.tick()
    assert waiting.state is SessionState.ACTIVE
    assert bench.engine.health().ready is False, "both rows are taken"
    assert bench.read("admissions_total", outcome="late") == 1
    assert bench.read("admissions_total", outcome="promoted") == 1


def test_one_caller_that_floods_or_does_not_read_stops_no_admission() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=2), clock=clock, config=EngineConfig(input_frames=200))
    flooder = bench.submit()
    bench.push(flooder, *range(100))
    for _ in range(100):
        clock.advance(0.020)
        bench.tick()
        (reply,) = flooder.take()
        flooder.sent(reply, clock())
    assert flooder.stats().late == 96
    bench.submit().close()
    deaf = bench.submit()
    for value in range(100):
        bench.push(deaf, value)
        bench.tick()
        (reply,) = deaf.take()
        clock.advance(0.1)
        deaf.sent(reply, clock(), peer_wait_s=0.09)
    assert deaf.stats().late == 100
    deaf.close()
    bench.submit()


def test_draining_refuses_newcomers_ends_waiting_and_lets_calls_go_on() -> None:
    bench = Bench(FakeBackend(slots=1))
    active, waiting = bench.submit(), bench.submit(wait_s=60)
    bench.engine.drain()
    bench.engine.drain()
    assert waiting.state is SessionState.CLOSED
    assert isinstance(waiting.error, DrainingError)
    with pytest.raises(DrainingError):
        bench.submit(wait_s=60)
    bench.push(active, 4)
    bench.tick()
    assert heard(active.take()) == [4]
    health = bench.engine.health()
    assert (health.draining, health.ready, health.is_healthy) == (True, False, True)
    assert bench.read("admissions_total", outcome="draining") == 2
    assert bench.engine.stop(1.0)
    assert isinstance(active.error, DrainingError)


def test_health_sees_a_step_that_does_not_come_back() -> None:
    backend = FakeBackend()
    release, running = threading.Event(), threading.Event()

    def hang() -> None:
        running.set()
        assert release.wait(120.0)

    backend.during_step = hang
    clock = FakeClock()
    with started(backend, EngineConfig(stuck_s=5.0), clock) as engine:
        calls = Calls(engine, is_started=True)
        session = submit(calls)
        session.push(frames(1), engine.clock())
        assert running.wait(60.0)
        clock.advance(5.0)
        assert engine.health().is_healthy
        clock.advance(0.1)
        health = engine.health()
        assert health.alive
        assert health.stuck_s == pytest.approx(5.1)
        assert not health.is_healthy
        assert not health.ready
        assert health.detail == "a step has been running for 5.1 s, more than 5 s"
        assert not engine.stop(0.05), "a thread inside a step cannot be stopped"
        release.set()


def test_slots_of_a_backend_that_was_made_already_must_agree() -> None:
    with pytest.raises(ConfigError, match="slots is 8, but the backend was made with 4"):
        Bench(FakeBackend(slots=4), config=EngineConfig(slots=8))


def test_every_metric_has_help_and_the_model_label() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1, 2)
    bench.tick()
    assert bench.read("active_sessions") == 1
    assert bench.read("slots") == 4
    assert bench.read("queued_sessions") == 0
    assert bench.read("admitting") == 1
    assert bench.read("input_queue_frames") == 1
    assert bench.read("output_queue_frames") == 1
    assert bench.read("state_bytes") == 4
    assert bench.read("frames_taken_total") == bench.read("replies_total") == 1
    assert bench.read("batch_rows_sum") == bench.read("physical_rows_sum") == 1
    for stage in ("gather", "scatter", "fake", "rest"):
        assert bench.read("stage_seconds_count", stage=stage) == 1
    assert bench.read("admissions_total", outcome="admitted") == 1
    bench.clock.advance(30)
    session.close()
    assert bench.read("session_seconds_sum") == 30
    for family in bench.registry.collect():
        assert family.documentation.endswith("."), family.name
        assert family.name.startswith("antiphon_")
        assert all(sample.labels["model"] == MODEL for sample in family.samples)
    assert b'antiphon_tick_seconds_bucket{le="0.08",model="fake"}' in generate_latest(bench.registry)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_tick_names_the_ready_rows_and_a_fixed_one_computes_all(is_fixed: bool) -> None:
    bench = Bench(FakeBackend(slots=4), config=EngineConfig(fixed_batch=is_fixed))
    sessions = [bench.submit() for _ in range(3)]
    bench.push(sessions[2], 1)
    bench.tick()
    step = bench.backend.steps[-1]
    assert (step.rows.tolist(), step.reset.tolist(), step.is_fixed) == ([0], [True], is_fixed)
    assert bench.read("batch_rows_sum") == 1
    assert bench.read("physical_rows_sum") == (4 if is_fixed else 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"late_admit_fraction": 0.2}, "late_admit_fraction 0.2 and late_refuse_fraction 0.05 must rise"),
        ({"late_refuse_fraction": 1.5}, "late_refuse_fraction 1.5 must rise from 0 to 1"),
        (
            {"memory_reserve_fraction": 1.0},
            "memory_reserve_fraction is 1.0, but must be at least 0 and below 1",
        ),
    ],
)
def test_contradicting_bounds_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**values)

"""A failure ends only the affected calls with a reason, or the whole engine at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.errors import AntiphonError, DeviceLostError, SessionFailedError, StepError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from tests.engine.bench import Bench, Calls, frames, heard
from tests.engine.fakes import FakeBackend, FakeClock


def test_a_failed_step_ends_only_the_rows_it_touched() -> None:
    bench = Bench()
    sessions = [bench.submit() for _ in range(3)]
    for value, session in enumerate(sessions):
        bench.push(session, value, 10 + value)
    bench.backend.failures = [StepError("bad token in row 1", rows=[1])]
    assert bench.tick()
    broken = sessions[1]
    assert broken.state is SessionState.CLOSED
    assert isinstance(broken.error, SessionFailedError)
    assert str(broken.error) == "the model failed at frame 0: bad token in row 1"
    assert bench.tick()
    for index in (0, 2):
        replies = sessions[index].take()
        assert heard(replies) == [10 + index]
        assert [reply.frame for reply in replies] == [1]
        assert sessions[index].stats().lost == 1, "the failed tick's reply never came"
    assert bench.read("failed_steps_total") == 1
    assert bench.losses == []


def test_the_next_owner_of_a_failed_row_starts_afresh() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = bench.submit()
    bench.push(first, 1)
    bench.backend.failures = [StepError("row 0", rows=[0])]
    bench.tick()
    second = bench.submit()
    bench.push(second, 2)
    bench.tick()
    (reply,) = second.take()
    assert reply.pcm is not None
    assert reply.pcm[:3].tolist() == [2, 1, 2]


@pytest.mark.parametrize("error", [DeviceLostError("sticky error 700"), ZeroDivisionError("a bug")])
def test_a_lost_device_ends_everybody_once(error: Exception) -> None:
    bench = Bench(FakeBackend(slots=2))
    told: list[int] = []
    sessions = [bench.submit(wait_s=60, notify=lambda: told.append(1)) for _ in range(3)]
    assert sessions[2].state is SessionState.QUEUED
    bench.push(sessions[0], 1)
    bench.backend.failures = [error]
    assert not bench.tick()
    message = f"the model can no longer run: {type(error).__name__}: {error}"
    for session in sessions:
        assert session.state is SessionState.CLOSED
        assert isinstance(session.error, SessionFailedError)
        assert str(session.error) == message
    assert len(told) == 3
    assert [str(loss) for loss in bench.losses] == [message]
    health = bench.engine.health()
    assert (health.alive, health.ready, health.is_healthy, health.detail) == (False, False, False, message)
    with pytest.raises(SessionFailedError, match="can no longer run"):
        bench.submit()


def test_a_thread_that_lost_its_device_ends_and_does_not_touch_it_again() -> None:
    backend = FakeBackend()
    backend.failures = [DeviceLostError("gone")]
    lost = threading.Event()
    metrics = EngineMetrics(CollectorRegistry(), model="fake")
    engine = Engine(backend, EngineConfig(), metrics=metrics, on_lost=lambda error: lost.set())
    engine.start()
    calls = Calls(engine, is_started=True)
    calls.submit().push(frames(1), engine.clock())
    calls.until(lost.is_set)
    assert engine.stop(60.0)
    assert not engine.health().alive
    assert not backend.closed


@pytest.mark.parametrize("call", ["set_parameters", "step"])
def test_whatever_call_into_the_backend_hangs_is_seen(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(slots=4), clock=clock)
    sessions = [bench.submit() for _ in range(3)]
    sessions[0].close()  # so that row 2 moves down
    seen: list[float] = []
    real = getattr(bench.backend, call)

    def slow(*arguments: Any) -> Any:
        clock.advance(11.0)
        seen.append(bench.engine.health().stuck_s)
        return real(*arguments)

    monkeypatch.setattr(bench.backend, call, slow)
    bench.push(sessions[2], 1)
    bench.tick()
    assert seen
    assert seen[0] == pytest.approx(11.0)
    assert bench.engine.health().is_healthy


def test_what_fails_between_ticks_ends_everybody_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[AntiphonError] = []
    backend = FakeBackend()
    metrics = EngineMetrics(CollectorRegistry(), model="fake")
    engine = Engine(backend, EngineConfig(), metrics=metrics, on_lost=lost.append)
    engine.prepare()
    session = Calls(engine).submit()

    def broken(timeout_s: float | None) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(engine.wake, "wait", broken)
    engine.loop.run()
    assert [str(error) for error in lost] == ["the model can no longer run: ZeroDivisionError: a bug"]
    assert session.state is SessionState.CLOSED
    assert not engine.health().alive


def test_an_on_lost_that_raises_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(list[Any]):
        def append(self, error: Any) -> None:
            raise RuntimeError("nobody home")

    bench = Bench()
    bench.losses = Broken()
    session = bench.submit()
    bench.push(session, 1)
    bench.backend.failures = [DeviceLostError("gone")]
    bench.tick()
    assert session.state is SessionState.CLOSED
    assert "on_lost failed" in caplog.text


def test_a_session_that_leaves_during_its_tick_leaves_nothing_to_the_next_owner() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = bench.submit(seed=1)
    successors: list[Session] = []

    def swap() -> None:
        bench.backend.during_step = lambda: None
        first.close()
        successors.append(bench.submit(seed=2))
        bench.push(successors[0], 50)

    bench.push(first, 7)
    bench.backend.during_step = swap
    bench.tick()
    (second,) = successors
    assert first.take() == []
    assert second.take() == []
    bench.tick()
    (reply,) = second.take()
    assert reply.pcm is not None
    assert reply.pcm[:4].tolist() == [50, 1, 50, 2], "its own frame, as the first, under its own parameters"

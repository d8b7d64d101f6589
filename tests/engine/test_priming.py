"""Prompts in the engine: read between ticks, alternating, before the first frame."""

from __future__ import annotations

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from antiphon.backends.base import TextEntry
from antiphon.engine.config import EngineConfig
from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.errors import SessionError, SessionFailedError, StepError, UnsupportedError
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, Calls, heard, pcm_of
from tests.engine.fakes import FakeBackend, fake_spec

DUPLEX = fake_spec(PipelineKind.DUPLEX, max_delay=1)


def prompt_of(*tokens: int) -> Prompt:
    return Prompt(np.array([[token, 0] for token in tokens], np.int32))


@pytest.fixture
def bench() -> Bench:
    return Bench(FakeBackend(DUPLEX))


def test_a_session_is_active_once_its_prompt_is_read_and_hears_from_then_on(bench: Bench) -> None:
    told: list[SessionState] = []
    session = bench.submit(prompt=prompt_of(5, 6, 7), seed=9, notify=lambda: told.append(session.state))
    assert session.state is SessionState.PRIMING
    assert session.room_samples == 0
    for _ in range(2):
        bench.push(session, 100.0)
        assert bench.tick()
        assert session.state is SessionState.PRIMING
    assert bench.tick()
    assert told == [SessionState.ACTIVE]
    assert not bench.tick()
    bench.push(session, 1.0, 2.0)
    assert bench.ticks() == 2
    replies = session.take()
    assert [reply.frame for reply in replies] == [0, 1]
    assert heard(replies) == [1.0, 2.0]
    assert pcm_of(replies[1])[2] == 5 + 6 + 7 + 1 + 2
    assert pcm_of(replies[1])[3] == 9
    assert session.stats().lost == session.stats().silent == 0


def test_who_talks_waits_for_one_piece_at_most(bench: Bench) -> None:
    talker = bench.submit()
    primed = [bench.submit(prompt=prompt_of(*range(10))) for _ in range(3)]
    for frame in range(30):
        bench.push(talker, float(frame))
        pieces = len(bench.backend.pieces)
        assert bench.tick()
        assert len(bench.backend.steps) == frame + 1
        assert len(bench.backend.pieces) <= pieces + 1
    assert all(session.state is SessionState.ACTIVE for session in primed)


def test_prompts_take_turns(bench: Bench) -> None:
    long = bench.submit(prompt=prompt_of(*range(50)))
    bench.tick()
    short = bench.submit(prompt=prompt_of(1, 2, 3))
    assert sum(bench.tick() for _ in range(7)) == 7
    assert short.state is SessionState.ACTIVE
    assert long.state is SessionState.PRIMING
    assert [row for row, _ in bench.backend.pieces] == [0, 0, 1, 0, 1, 0, 1, 0]


def test_a_session_that_leaves_midway_leaves_nothing_behind(bench: Bench) -> None:
    session = bench.submit(prompt=prompt_of(1, 2, 3, 4))
    bench.tick()
    session.close()
    assert bench.ticks() == 0
    assert bench.engine.health().active == 0
    for prompt in (None, prompt_of(8, 9)):
        heir = bench.submit(prompt=prompt)
        bench.ticks()
        bench.push(heir, 1.0, 2.0)
        bench.ticks()
        assert pcm_of(heir.take()[-1])[2] == 3.0 + (17.0 if prompt else 0.0)
        heir.close()


def test_a_session_that_waited_is_primed_when_it_gets_its_row() -> None:
    bench = Bench(FakeBackend(DUPLEX, slots=1))
    first = bench.submit()
    second = bench.submit(prompt=prompt_of(1, 2), wait_s=10.0)
    assert second.state is SessionState.QUEUED
    first.close()
    assert second.state == str(SessionState.PRIMING)
    assert bench.ticks() == 2
    assert second.state == str(SessionState.ACTIVE)


def test_a_prompt_the_backend_cannot_read_ends_its_session_alone(bench: Bench) -> None:
    good, bad = bench.submit(prompt=prompt_of(1, 2)), bench.submit(prompt=prompt_of(1))
    bench.ticks()
    assert good.state is SessionState.ACTIVE
    assert isinstance(bad.error, SessionFailedError)
    assert str(bad.error) == "the model cannot use this prompt: one frame says nothing"


def test_a_piece_that_fails_ends_its_session_alone(bench: Bench) -> None:
    bench.backend.failures = [None, StepError("planned", rows=[1])]
    good, bad = bench.submit(prompt=prompt_of(1, 2)), bench.submit(prompt=prompt_of(3, 4))
    bench.ticks()
    assert good.state is SessionState.ACTIVE
    assert str(bad.error) == "the model failed while it read the prompt: planned"
    assert bench.read("failed_steps_total") == 1


def test_a_device_lost_in_a_prompt_is_lost_for_all(bench: Bench) -> None:
    bench.backend.failures = [RuntimeError("sticky")]
    sessions = [bench.submit(), bench.submit(prompt=prompt_of(1, 2))]
    assert not bench.tick()
    assert bench.engine.loop.is_lost
    assert all(isinstance(session.error, SessionFailedError) for session in sessions)


def test_a_piece_counts_as_a_running_step(bench: Bench) -> None:
    bench.submit(prompt=prompt_of(1, 2))
    stuck: list[float] = []

    def look() -> None:
        bench.clock.advance(11.0)
        stuck.append(bench.engine.health().stuck_s)

    bench.backend.during_step = look
    bench.tick()
    assert stuck == [11.0]
    assert bench.engine.health().stuck_s == 0.0


def test_a_backend_without_prompts_refuses_at_once() -> None:
    bench = Bench()
    with pytest.raises(UnsupportedError, match="the fake backend takes no prompt for fake"):
        bench.submit(prompt=prompt_of(1, 2))
    assert bench.engine.health().active == 0


def test_prompts_are_counted_by_how_they_came_about(bench: Bench) -> None:
    assert bench.read("prompts_total", how="copied") == 0
    bench.submit(prompt=prompt_of(1, 2))
    bench.ticks()
    assert bench.read("prompts_total", how="computed") == 1
    assert bench.read("stage_seconds_count", stage="prompt") == 2


def test_the_engine_thread_does_not_sleep_over_a_prompt() -> None:
    engine = Engine(
        FakeBackend(DUPLEX), EngineConfig(), metrics=EngineMetrics(CollectorRegistry(), model="fake")
    )
    engine.start()
    calls = Calls(engine, is_started=True)
    session = calls.submit(prompt=prompt_of(*range(50)))
    calls.until(lambda: session.state is SessionState.ACTIVE)  # all pieces follow from one wake-up
    assert engine.stop(60.0)


def test_text_that_came_while_a_voice_was_read_is_spoken() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.TTS)))
    session = bench.submit(prompt=prompt_of(5, 6, 7))
    session.push_text([TextEntry((4,), is_last=True)], bench.clock())
    assert bench.ticks() == 3 + 1
    assert heard(session.take()) == [4]
    assert session.is_done


def test_a_prompt_may_be_changed_until_something_was_pushed() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.TTS)))
    session = bench.submit(prompt=prompt_of(5, 6))
    bench.tick()
    bench.backend.during_step = lambda: session.prime(prompt_of(1, 2, 3))  # while the last piece is read
    bench.tick()
    bench.backend.during_step = lambda: None
    assert session.state is SessionState.PRIMING
    bench.ticks()
    assert session.state == str(SessionState.ACTIVE)
    assert bench.backend.rows[0].sum == 1 + 2 + 3
    session.prime(prompt_of(8, 9))
    assert session.state is SessionState.PRIMING
    bench.ticks()
    assert bench.backend.rows[0].sum == 8 + 9
    session.push_text([TextEntry((4,), is_last=True)], bench.clock())
    with pytest.raises(
        SessionError, match="a prompt arrived after the first input; it must precede all input"
    ):
        session.prime(prompt_of(1, 2))
    session.close()
    session.prime(prompt_of(1, 2))
    assert session.state == str(SessionState.CLOSED)

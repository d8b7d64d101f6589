"""Excess frames of a session: dropped, flushed, late and lost ones are counted."""

from __future__ import annotations

import threading

import pytest

from antiphon.backends.base import StepInputs, StepOutputs
from antiphon.engine.config import EngineConfig
from antiphon.errors import StepError
from antiphon.ipc.values import SessionState, SessionStats
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, bench_of, heard
from tests.engine.fakes import FRAME_S, FakeBackend, FakeClock, fake_spec


@pytest.mark.parametrize("kind", [PipelineKind.CODEC, PipelineKind.DUPLEX])
def test_live_input_drops_its_oldest_and_leaves_a_gap_in_the_indices(kind: PipelineKind) -> None:
    bench = Bench(FakeBackend(fake_spec(kind, max_delay=0)), config=EngineConfig(input_frames=3))
    session = bench.submit()
    bench.push(session, 0, 1, 2)
    bench.push(session, 3, 4)
    assert session.stats().dropped_in == 2
    bench.ticks()
    replies = session.take()
    assert [reply.frame for reply in replies] == [2, 3, 4]
    assert heard(replies) == [2, 3, 4]
    stats = session.stats()
    assert (stats.frames_in, stats.dropped_in, stats.frames_out, stats.lost) == (5, 2, 3, 0)
    assert bench.read("dropped_frames_total", direction="in") == 2


def test_a_gap_is_told_with_the_first_replies_after_it_though_the_engine_goes_on() -> None:
    """Whatever is taken, and whenever, a reply that follows a gap in the frames came with its gap."""
    bench = Bench(FakeBackend(slots=1), config=EngineConfig(input_frames=64, output_frames=2))
    session = bench.submit()
    pushed = 4000
    is_over = threading.Event()

    def tick_on() -> None:
        for frame in range(pushed):
            bench.push(session, frame % 7)
            bench.tick()
        is_over.set()

    ticking = threading.Thread(target=tick_on)
    ticking.start()
    expected = 0
    gaps = 0
    while not is_over.is_set() or session.stats().reply_frames:
        replies, interrupted_at = session.take_with_gap()
        if interrupted_at is not None:
            gaps += 1
            assert replies[0].frame >= interrupted_at > expected
            expected = interrupted_at
        for reply in replies:
            assert reply.frame == expected, "no gap without its word"
            expected = reply.frame + 1
    ticking.join()
    assert gaps > 0
    assert expected == pushed


def assert_adds_up(stats: SessionStats) -> None:
    there = stats.dropped_in + stats.flushed_in + stats.queue_frames + stats.frames_taken
    assert stats.frames_in == there
    gone = stats.silent + stats.lost + stats.flushed_out + stats.dropped_out
    assert stats.frames_taken == gone + stats.reply_frames + stats.frames_out


@pytest.mark.parametrize("way", ["between ticks", "in a tick", "failed step", "refused parameters"])
def test_the_frames_of_a_session_that_ended_still_add_up(way: str) -> None:
    bench = bench_of(PipelineKind.CODEC)
    session = bench.submit()
    bench.push(session, 1, 2, 3, 4, 5)
    assert bench.tick()
    assert len(session.take()) == 1
    assert bench.tick()
    if way == "between ticks":
        session.close()
    elif way == "in a tick":
        bench.backend.during_step = session.close
        assert bench.tick()
    elif way == "failed step":
        bench.backend.failures = [StepError("bad", rows=[0])]
        assert bench.tick()
    else:
        bench.backend.refused_seed = 13
        session.set_parameters(SamplingParameters(text_seed=13))
        assert not bench.tick()
    assert session.state is SessionState.CLOSED
    stats = session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.frames_out, stats.lost) == (5, 1, 0)


def test_live_output_drops_its_oldest_and_says_where_it_goes_on() -> None:
    bench = bench_of(PipelineKind.CODEC, output_frames=2, input_frames=8)
    session = bench.submit()
    bench.push(session, 0, 1, 2, 3, 4)
    assert bench.ticks() == 5
    replies, interrupted_at = session.take_with_gap()
    assert interrupted_at == 3
    assert [reply.frame for reply in replies] == [3, 4]
    assert session.take_with_gap() == ([], None)
    assert session.stats().dropped_out == 3
    assert bench.read("dropped_frames_total", direction="out") == 3


def test_duplex_frames_inside_the_delay_are_silent_not_lost() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.DUPLEX, max_delay=2)))
    session = bench.submit()
    bench.push(session, 0, 1, 2, 3)
    bench.ticks()
    replies = session.take()
    assert [reply.frame for reply in replies] == [2, 3]
    assert [reply.text_token for reply in replies] == [3, 4]
    stats = session.stats()
    assert (stats.silent, stats.lost, stats.frames_taken) == (2, 0, 4)


def test_a_frame_without_a_reply_after_the_delay_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    session = bench.submit()
    hear = bench.backend.step

    def step(inputs: StepInputs) -> StepOutputs:
        outputs = hear(inputs)
        outputs.emitted[:] = False
        return outputs

    monkeypatch.setattr(bench.backend, "step", step)
    bench.push(session, 1)
    bench.tick()
    assert session.take() == []
    assert session.stats().lost == 1
    assert bench.read("lost_frames_total") == 1


def test_flush_throws_away_all_that_was_not_sent_even_what_is_being_computed() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 0, 1, 2, 3)
    bench.tick()
    at_frames: list[int] = []
    bench.backend.during_step = lambda: at_frames.append(session.flush())
    bench.tick()
    bench.backend.during_step = lambda: None
    assert at_frames == [4]
    assert session.take() == []
    assert not bench.tick()
    bench.push(session, 4)
    bench.tick()
    assert [reply.frame for reply in session.take()] == [4]
    stats = session.stats()
    assert (stats.flushed_in, stats.flushed_out, stats.frames_out, stats.frames_in) == (2, 2, 1, 5)


def test_late_is_latency_over_one_frame_and_sent_records_it() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    bench.tick()
    (reply,) = session.take()
    session.sent(reply, reply.complete_s + FRAME_S - 0.001)
    assert session.stats().late == 0
    bench.push(session, 2)
    bench.tick()
    (reply,) = session.take()
    session.sent(reply, reply.complete_s + FRAME_S + 0.001)
    assert session.stats().late == 1
    assert bench.read("late_frames_total") == 1
    assert bench.read("frame_latency_seconds_count") == 2
    assert bench.read("frame_latency_seconds_bucket", le="0.08") == 1
    assert bench.read("first_audio_seconds_count") == 1


def test_stats_give_the_times_of_recent_ticks() -> None:
    clock = FakeClock()
    times = iter([0.010, 0.010, 0.010, 0.050])
    bench = Bench(FakeBackend(clock=clock, step_s=lambda rows: next(times)), clock=clock)
    session = bench.submit()
    for value in range(4):
        bench.push(session, value)
        clock.advance(0.002)
        bench.tick()
    stats = session.stats()
    assert stats.step_ms_p50 == pytest.approx(10)
    assert stats.step_ms_p99 == pytest.approx(50)
    assert stats.wait_ms_p50 == pytest.approx(2)

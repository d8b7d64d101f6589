"""One session: input, ticks, output, parameters and end."""

from __future__ import annotations

import pytest

from antiphon.engine.session_manager import MAX_UPDATES
from antiphon.errors import SessionError
from antiphon.ipc.values import SessionState
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, bench_of, frames, heard, pcm_of, words
from tests.engine.fakes import FRAME, FakeBackend, FakeClock


def test_a_frame_comes_back_with_its_times() -> None:
    clock = FakeClock()
    bench = Bench(FakeBackend(clock=clock, step_s=lambda rows: 0.020), clock=clock)
    session = bench.submit()
    session.push(frames(0.5)[:5], clock())
    clock.advance(0.030)
    session.push(frames(0.5)[5:], clock())
    complete_s = clock()
    clock.advance(0.010)
    assert bench.tick()
    (reply,) = session.take()
    assert reply.frame == 0
    assert reply.complete_s == complete_s
    assert reply.wait_ms == pytest.approx(10)
    assert reply.step_ms == pytest.approx(20)
    assert reply.replied_s == pytest.approx(complete_s + 0.030)
    assert heard([reply]) == [0.5]
    base = pcm_of(reply).base
    assert base is not None
    assert base.size == FRAME, "a view of more would keep others' audio alive"
    assert session.take() == []
    assert not bench.tick()


def test_one_frame_a_tick_however_many_wait() -> None:
    bench = Bench()
    greedy, modest = bench.submit(), bench.submit()
    bench.push(greedy, 1, 2, 3)
    bench.push(modest, 9)
    assert bench.tick()
    assert heard(greedy.take()) == [1]
    assert heard(modest.take()) == [9]
    assert bench.ticks() == 2
    assert heard(greedy.take()) == [2, 3]


def test_sessions_that_come_during_a_tick_join_the_next() -> None:
    bench = Bench()
    first, second = bench.submit(), bench.submit()
    bench.push(first, 1)

    def come() -> None:
        bench.push(second, 2)

    bench.backend.during_step = come
    assert bench.tick()
    bench.backend.during_step = lambda: None
    assert second.take() == []
    assert bench.tick()
    assert heard(second.take()) == [2]


def test_only_a_whole_frame_wakes_the_engine() -> None:
    bench = Bench()
    session = bench.submit()
    session.push(frames(1)[: FRAME - 1], 0.0)
    assert not bench.tick()
    session.push(frames(1)[FRAME - 1 :], 0.0)
    assert bench.tick()


def test_callers_who_come_and_go_during_one_step_do_not_pile_up() -> None:
    bench = Bench(FakeBackend(slots=2))
    stays = bench.submit()

    def come_and_go() -> None:
        for _ in range(50):
            passing = bench.submit()
            bench.push(passing, 1)
            passing.close()
        bench.push(stays, 2)

    bench.backend.during_step = come_and_go
    bench.push(stays, 1)
    bench.tick()
    bench.backend.during_step = lambda: None
    assert bench.tick()
    assert bench.backend.steps[-1].rows.tolist() == [0]
    assert heard(stays.take()) == [1, 2]


def test_finish_pads_the_tail_and_done_means_everything_was_taken() -> None:
    told: list[str] = []
    bench = Bench()
    session = bench.submit(notify=lambda: told.append("told"))
    session.push(frames(1, 2)[: FRAME + 3], bench.clock())
    session.finish()
    session.push(frames(9), bench.clock())  # ignored
    bench.ticks()
    assert not session.is_done
    assert heard(session.take()) == [1, 2]
    assert session.is_done
    silent = bench.submit(notify=lambda: told.append("done"))
    silent.finish()
    assert silent.is_done
    assert told[-1] == "done"


def test_finish_during_a_tick_is_not_done_before_its_reply() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    seen: list[bool] = []

    def finish() -> None:
        session.finish()
        seen.append(session.is_done)

    bench.backend.during_step = finish
    bench.tick()
    assert seen == [False]
    assert heard(session.take()) == [1]
    assert session.is_done


def test_parameters_reach_the_row_before_the_next_frame_and_only_then() -> None:
    bench = Bench()
    session = bench.submit(seed=11)
    bench.push(session, 0, 0, 0)
    bench.tick()
    session.set_parameters(SamplingParameters(text_seed=12))
    assert session.parameters.text_seed == 12
    bench.ticks()
    assert [pcm_of(reply)[3] for reply in session.take()] == [11, 12, 12]


def test_parameters_a_backend_cannot_use_end_that_session_alone() -> None:
    bench = Bench()
    bench.backend.refused_seed = 13
    bad, good = bench.submit(seed=13), bench.submit()
    bench.push(bad, 1)
    bench.push(good, 2)
    bench.tick()
    assert bad.state is SessionState.CLOSED
    assert str(bad.error) == "the model cannot use these parameters: seed 13 is refused"
    assert heard(good.take()) == [2]


@pytest.mark.parametrize("kind", [PipelineKind.CODEC, PipelineKind.TTS])
def test_max_steps_ends_a_session_as_if_it_had_finished(kind: PipelineKind) -> None:
    bench = bench_of(kind)
    session = bench.calls.submit(SamplingParameters(max_steps=2))
    if kind is PipelineKind.TTS:
        session.push_text(words(1, 2, 3), bench.clock())
    else:
        bench.push(session, 1, 2, 3)
    assert bench.ticks() == 2
    assert session.queue_frames == 0
    assert not session.is_done
    assert heard(session.take()) == [1, 2]
    assert session.is_done
    assert session.state is SessionState.ACTIVE


def test_audio_is_ignored_until_active_and_after_the_end() -> None:
    bench = Bench(FakeBackend(slots=1))
    first, second = bench.submit(), bench.submit(wait_s=10)
    bench.push(second, 1, 2)
    first.close()
    bench.push(first, 3)
    assert not bench.tick()
    bench.push(second, 4)
    bench.tick()
    replies = second.take()
    assert heard(replies) == [4]
    assert replies[0].frame == 0


def test_close_is_idempotent_and_forgets_everything() -> None:
    told: list[int] = []
    bench = Bench()
    session = bench.submit(notify=lambda: told.append(1))
    bench.push(session, 1, 2)
    bench.tick()
    before = len(told)
    session.close()
    session.close(SessionError("too late"))
    assert session.state is SessionState.CLOSED
    assert session.error is None
    assert session.take() == []
    assert session.room_samples == 0
    assert len(told) == before + 1
    assert not bench.tick()
    assert bench.engine.health().active == 0


def test_a_notify_that_raises_ends_its_session_and_no_other() -> None:
    bench = Bench()

    def broken() -> None:
        raise RuntimeError("loop is closed")

    bad, good = bench.submit(notify=broken), bench.submit()
    bench.push(bad, 1)
    bench.push(good, 2)
    assert bench.tick()
    assert bad.state is SessionState.CLOSED
    assert "loop is closed" in str(bad.error)
    assert heard(good.take()) == [2]
    assert bench.engine.health().active == 1


def test_what_is_asked_for_during_one_step_is_bounded() -> None:
    bench = Bench()
    session = bench.submit()

    def ask() -> None:
        for seed in range(MAX_UPDATES + 1):
            session.set_parameters(SamplingParameters(text_seed=seed))

    bench.backend.during_step = ask
    bench.push(session, 1)
    bench.tick()
    assert str(session.error) == f"{MAX_UPDATES} changes wait for the model, the limit is {MAX_UPDATES}"
    bench.backend.during_step = lambda: None
    other = bench.submit()
    for seed in range(MAX_UPDATES + 2):
        other.set_parameters(SamplingParameters(text_seed=seed))
        bench.tick()
    bench.push(other, 2)
    bench.ticks()
    assert pcm_of(other.take()[0])[3] == MAX_UPDATES + 1

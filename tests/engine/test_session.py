"""One session's frames: in, through a tick, out, and what gives way when there are too many."""

from __future__ import annotations

import threading

import pytest

from antiphon.backends.base import StepInputs, StepOutputs, TextEntry
from antiphon.engine.batch import Batch, RowOutput
from antiphon.engine.config import EngineConfig
from antiphon.engine.lane import TickTimes
from antiphon.engine.ledger import SessionStats
from antiphon.engine.outbox import FrameReply
from antiphon.engine.session import SessionState
from antiphon.engine.slots import Slot
from antiphon.errors import SessionError, StepError, UnsupportedError
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.fakes import FRAME, FRAME_S, Bench, FakeBackend, FakeClock, fake_spec, frames, heard, pcm_of


def bench_of(kind: PipelineKind, *, input_frames: int = 8, output_frames: int = 25) -> Bench:
    config = EngineConfig(input_frames=input_frames, output_frames=output_frames)
    return Bench(FakeBackend(fake_spec(kind), 4), config=config)


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
    assert pcm_of(reply).base is None, "a view would keep the whole tick's audio alive"
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


@pytest.mark.parametrize("kind", [PipelineKind.CODEC, PipelineKind.DUPLEX])
def test_live_input_drops_its_oldest_and_leaves_a_gap_in_the_indices(kind: PipelineKind) -> None:
    bench = Bench(FakeBackend(fake_spec(kind, max_delay=0)), config=EngineConfig(input_frames=3))
    session = bench.submit()
    assert bench.push(session, 0, 1, 2) == 0
    assert bench.push(session, 3, 4) == 2
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


def test_a_last_word_finishes_the_session_like_finish() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text([TextEntry((5,)), TextEntry((6,), is_last=True)], bench.clock())
    session.push_text([TextEntry((7,))], bench.clock())
    assert session.stats().queue_frames == 2, "nothing comes after the last word"
    bench.ticks()
    assert not session.is_done, "its replies wait"
    assert heard(session.take()) == [5, 6]
    assert session.is_done


def test_callers_who_come_and_go_during_one_step_do_not_pile_up() -> None:
    bench = Bench(FakeBackend(slots=2))
    stays = bench.submit()
    listed: list[int] = []

    def come_and_go() -> None:
        for _ in range(50):
            passing = bench.submit()
            bench.push(passing, 1)
            passing.close()
        bench.push(stays, 2)
        listed.append(len(bench.engine._ready._items))

    bench.backend.during_step = come_and_go
    bench.push(stays, 1)
    bench.tick()
    assert listed == [1]
    bench.backend.during_step = lambda: None
    bench.tick()
    assert heard(stays.take()) == [1, 2]


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


def test_a_frame_without_a_reply_after_the_delay_is_lost() -> None:
    bench = Bench()
    session = bench.submit()
    hear = bench.backend.step

    def step(inputs: StepInputs) -> StepOutputs:
        outputs = hear(inputs)
        outputs.emitted[:] = False
        return outputs

    bench.backend.step = step  # type: ignore[method-assign]
    bench.push(session, 1)
    bench.tick()
    assert session.take() == []
    assert session.stats().lost == 1
    assert bench.read("lost_frames_total") == 1


def test_stt_refuses_what_does_not_fit_and_says_how_much_would() -> None:
    bench = bench_of(PipelineKind.STT, input_frames=2)
    session = bench.submit()
    assert session.room_samples == 2 * FRAME
    bench.push(session, 1)
    assert session.room_samples == FRAME
    with pytest.raises(SessionError, match=r"16 samples were pushed where 8 fit"):
        bench.push(session, 2, 3)
    bench.push(session, 2)
    assert session.room_samples == 0
    bench.ticks()
    assert session.room_samples == 2 * FRAME
    replies = session.take()
    assert [(reply.pcm, reply.text_token, reply.vad) for reply in replies] == [
        (None, 1, (0.25, 0.5)),
        (None, 2, (0.25, 0.5)),
    ]


def test_stt_loses_nothing_however_slowly_it_is_read() -> None:
    bench = bench_of(PipelineKind.STT, input_frames=4, output_frames=2)
    session = bench.submit()
    taken: list[FrameReply] = []
    pushed = 0
    while len(taken) < 50:
        while pushed < 50 and session.room_samples >= FRAME:
            bench.push(session, pushed)
            pushed += 1
        assert bench.ticks() <= 2
        assert session.reply_frames <= 2
        taken += session.take()
    assert [reply.frame for reply in taken] == list(range(50))
    assert session.stats().dropped_in == session.stats().dropped_out == session.stats().lost == 0


def words(*tokens: int, frames_each: int = 1) -> list[TextEntry]:
    return [TextEntry((token,), padding_frames=frames_each - 1) for token in tokens]


def test_tts_speaks_its_words_in_order_rests_and_goes_on() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text(words(3, 4, frames_each=2), bench.clock())
    bench.ticks()
    assert heard(session.take()) == [3, 3, 4, 4]
    assert not bench.tick(), "a row with nothing to say rests"
    session.push_text(words(5), bench.clock())
    session.finish()
    bench.ticks()
    assert not session.is_done
    assert heard(session.take()) == [5]
    assert session.is_done


def test_tts_waits_for_its_listener_and_drops_nothing() -> None:
    bench = bench_of(PipelineKind.TTS, output_frames=3)
    session = bench.submit()
    session.push_text(words(*range(10)), bench.clock())
    spoken: list[float] = []
    for _ in range(5):
        assert bench.ticks() <= 3
        spoken += heard(session.take())
    assert spoken == list(range(10))
    assert session.stats().dropped_out == 0


def test_tts_text_is_bounded_and_waits_in_the_queue() -> None:
    bench = Bench(FakeBackend(fake_spec(PipelineKind.TTS), 1), config=EngineConfig(text_entries=2))
    first, second = bench.submit(), bench.submit(wait_s=10)
    assert second.room_entries == 2
    with pytest.raises(SessionError, match=r"3 words were pushed where 2 of 2 fit"):
        second.push_text(words(1, 2, 3), 0.0)
    second.push_text(words(7), 0.0)
    second.finish()
    first.close()
    bench.ticks()
    assert heard(second.take()) == [7]
    assert second.is_done


def test_words_that_come_while_older_ones_are_flushed_are_all_spoken() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text(words(1, 2), bench.clock())

    def change_of_mind() -> None:
        bench.backend.during_step = lambda: None
        session.flush()
        session.push_text(words(8, 9), bench.clock())

    bench.backend.during_step = change_of_mind
    bench.ticks()
    assert heard(session.take()) == [2, 8, 9], "the row had taken 2 already"


def test_the_wrong_kind_of_input_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a tts session takes text, not audio"):
        bench_of(PipelineKind.TTS).submit().push(frames(1), 0.0)
    with pytest.raises(UnsupportedError, match="a codec session takes audio, not text"):
        bench_of(PipelineKind.CODEC).submit().push_text(words(1), 0.0)
    assert bench_of(PipelineKind.TTS).submit().room_samples == 0
    assert bench_of(PipelineKind.CODEC).submit().room_entries == 0


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
    session = bench.engine.submit(SamplingParameters(max_steps=2), wait_s=0, notify=lambda: None)
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
    assert bench.push(second, 1, 2) == 0
    first.close()
    assert bench.push(first, 3) == 0
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


def test_what_was_computed_under_another_generation_is_thrown_away() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1)
    batch = Batch(bench.backend.spec, 4)
    lane = session.begin_tick(batch)
    assert lane is not None
    output = RowOutput(True, True, frames(1), None, (), False)
    older = lane._replace(slot=Slot(lane.slot.row, lane.slot.generation - 2))
    session.end_tick(older, output, TickTimes(0.0, 0.0))
    assert session.take() == []
    session.end_tick(lane, output, TickTimes(0.0, 0.0))
    assert heard(session.take()) == [1]


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


def test_a_tts_row_is_offered_several_words_and_takes_all_or_none() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text(words(*range(1, 12)), bench.clock())
    bench.tick()
    assert len(bench.backend.steps[0].text[0]) == 8
    assert session.room_entries == EngineConfig().text_entries - 3
    bench.ticks()
    assert heard(session.take()) == list(range(1, 12))

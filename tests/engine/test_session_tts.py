"""Sessions without drops: recognition and synthesis."""

from __future__ import annotations

import pytest

from antiphon.backends.base import TextEntry
from antiphon.engine.config import EngineConfig
from antiphon.errors import SessionError, UnsupportedError
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, bench_of, frames, heard, words
from tests.engine.fakes import FRAME, FakeBackend, fake_spec


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


def test_a_flush_keeps_the_end_that_was_said() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text(words(5, 6), bench.clock())
    session.finish()
    session.flush()
    bench.ticks()
    assert session.take() == []
    assert session.is_done


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


def test_a_tts_row_is_offered_several_words_and_takes_all_or_none() -> None:
    bench = bench_of(PipelineKind.TTS)
    session = bench.submit()
    session.push_text(words(*range(1, 12)), bench.clock())
    bench.tick()
    assert len(bench.backend.steps[0].text[0]) == 8
    assert session.room_entries == EngineConfig().text_entries - 3
    bench.ticks()
    assert heard(session.take()) == list(range(1, 12))

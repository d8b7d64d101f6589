"""Flush padding: it produces replies without an effect on the row, counts or order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import RowSnapshot, StepInputs, StepOutputs
from antiphon.engine.config import EngineConfig
from antiphon.errors import UnsupportedError
from antiphon.ipc.session import Session
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench
from tests.engine.fakes import FRAME, FakeBackend, fake_spec

STT = fake_spec(PipelineKind.STT)


def bench(**config: Any) -> Bench:
    return Bench(FakeBackend(STT), config=EngineConfig(**config))


def kept(engine: Bench, session: Session) -> RowSnapshot | None:
    assert session.lease is not None
    return engine.engine.rows.entry(session.lease).padding.kept


def tokens(replies: list[FrameReply], *, padding: bool) -> list[int | None]:
    return [reply.text_token for reply in replies if reply.is_padding is padding]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 3 * FRAME)),
        st.tuples(st.just("padding"), st.integers(1, 4)),
        st.tuples(st.just("tick"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS, st.booleans())
def test_what_the_caller_sends_is_heard_as_if_there_had_been_no_silence(
    actions: list[tuple[str, int]], has_neighbour: bool
) -> None:
    engine = bench(input_frames=64, output_frames=1000)
    session = engine.submit(seed=1)
    if has_neighbour:
        engine.push(engine.submit(), *[9.0] * 50)
    sent: list[float] = []
    replies: list[FrameReply] = []
    for action, number in actions:
        if action == "push":
            values = np.arange(len(sent) + 1, len(sent) + number + 1, dtype=np.float32)
            session.push(values, engine.clock())
            sent += values.tolist()
        elif action == "padding":
            session.feed_padding(number, engine.clock())
        elif action == "tick":
            for _ in range(number):
                engine.tick()
        else:
            replies += session.take()
    session.push(np.zeros(-len(sent) % FRAME, np.float32), engine.clock())  # whatever was pending gives way
    session.finish()
    engine.ticks()
    replies += session.take()
    whole = -(-len(sent) // FRAME)
    live = [reply for reply in replies if not reply.is_padding]
    assert [reply.frame for reply in live] == list(range(whole))
    assert [reply.text_token for reply in live] == list(range(1, whole + 1))
    rows = [row for row in engine.backend.rows if row.parameters.text_seed == 1]
    snapshot = kept(engine, session)
    if snapshot is not None:  # no frame came after the last silence
        rows = [snapshot.tensors["row"]]
    assert [(row.taken, row.sum) for row in rows] == ([(whole, sum(sent[::FRAME]))] if whole else [])
    stats = session.stats()
    assert (stats.frames_in, stats.frames_taken, stats.frames_out, stats.lost) == (whole, whole, whole, 0)
    assert session.is_done


def test_silence_is_heard_after_all_audio_and_ends_an_unfinished_frame() -> None:
    engine = bench()
    session = engine.submit()
    session.push(np.full(2 * FRAME + 3, 5.0, np.float32), engine.clock())
    session.feed_padding(3, engine.clock())
    heard: list[float] = []
    step = engine.backend.step

    def hear(inputs: StepInputs) -> StepOutputs:
        assert inputs.pcm is not None
        heard.append(float(inputs.pcm[0].sum()))
        return step(inputs)

    engine.backend.step = hear  # type: ignore[method-assign]
    assert engine.ticks() == 5
    assert heard == [5.0 * FRAME, 5.0 * FRAME, 15.0, 0.0, 0.0]
    replies = session.take()
    assert [(reply.frame, reply.is_padding) for reply in replies] == [
        *((0, False), (1, False)),
        *((-1, True), (-1, True), (-1, True)),
    ]
    assert engine.read("frames_taken_total") == 2
    assert engine.read("padding_frames_total") == 3


def test_replies_to_silence_do_not_come_after_the_caller_goes_on() -> None:
    engine = bench()
    session = engine.submit()
    engine.push(session, 1.0)
    session.feed_padding(4, engine.clock())
    engine.tick()
    engine.tick()  # one frame of silence is answered

    def go_on() -> None:
        engine.push(session, 2.0)

    engine.backend.during_step = go_on  # while the next is being answered
    engine.tick()
    engine.backend.during_step = lambda: None
    engine.ticks()
    replies = session.take()
    assert tokens(replies, padding=True) == []
    assert tokens(replies, padding=False) == [1, 2]


def test_more_silence_goes_on_where_the_last_ended() -> None:
    engine = bench()
    session = engine.submit()
    engine.push(session, 1.0)
    for _ in range(3):
        session.feed_padding(2, engine.clock())
        engine.ticks()
    assert tokens(session.take(), padding=True) == [2, 3, 4, 5, 6, 7]


def test_silence_begins_anew_after_more_audio_that_is_no_whole_frame() -> None:
    engine = bench()
    session = engine.submit()
    engine.push(session, 1.0)
    session.feed_padding(2, engine.clock())
    engine.ticks()
    session.take()
    session.push(np.full(3, 7.0, np.float32), engine.clock())
    session.feed_padding(2, engine.clock())
    engine.ticks()
    assert tokens(session.take(), padding=True) == [2, 3]
    assert engine.backend.rows[0].sum == 1.0 + 7.0


@pytest.mark.parametrize("padding_rows", [0, 1])
def test_no_more_states_are_kept_than_allowed(padding_rows: int) -> None:
    engine = bench(padding_rows=padding_rows)
    sessions = [engine.submit() for _ in range(3)]
    for session in sessions:
        engine.push(session, 1.0)
        session.feed_padding(2, engine.clock())
    engine.ticks()
    assert [kept(engine, session) is not None for session in sessions] == [True] * padding_rows + [False] * (
        3 - padding_rows
    )
    for session in sessions:
        engine.push(session, 1.0)
    engine.ticks()
    assert [kept(engine, session) for session in sessions] == [None] * 3
    assert [row.taken for row in engine.backend.rows[:3]] == [2] * padding_rows + [4] * (3 - padding_rows)


def test_a_session_that_ends_keeps_nothing_and_its_successor_starts_fresh() -> None:
    engine = Bench(FakeBackend(STT, slots=1))
    first = engine.submit()
    engine.push(first, 1.0)
    first.feed_padding(2, engine.clock())
    engine.tick()
    engine.tick()
    assert engine.engine.rows.kept_states() == 1
    first.close()
    second = engine.submit()
    engine.tick()
    assert engine.engine.rows.kept_states() == 0
    second.feed_padding(3, engine.clock())  # it has heard nothing: there is nothing to bring out
    assert engine.ticks() == 0
    engine.push(second, 4.0)
    engine.ticks()
    assert tokens(second.take(), padding=False) == [1]
    assert engine.backend.rows[0].sum == 4.0


@pytest.mark.parametrize("kind", [PipelineKind.CODEC, PipelineKind.TTS])
def test_other_pipelines_hear_nothing_aside(kind: PipelineKind) -> None:
    session: Session = Bench(FakeBackend(fake_spec(kind))).submit()
    with pytest.raises(UnsupportedError, match=f"a {kind} session takes no flush padding"):
        session.feed_padding(1, 0.0)


def test_silence_waits_for_room_among_the_replies() -> None:
    engine = bench(output_frames=2)
    session = engine.submit()
    engine.push(session, 1.0)
    session.feed_padding(4, engine.clock())
    assert engine.ticks() == 2
    assert len(session.take()) == 2
    assert engine.ticks() == 2
    assert tokens(session.take(), padding=True) == [3, 4]
    engine.ticks()
    assert tokens(session.take(), padding=True) == [5]


def test_a_session_is_idle_when_everything_was_answered_and_taken() -> None:
    engine = bench()
    session = engine.submit()
    idle = [session.is_idle]
    engine.backend.during_step = lambda: idle.append(session.is_idle)
    engine.push(session, 1.0)
    idle.append(session.is_idle)
    engine.ticks()
    idle.append(session.is_idle)
    session.take()
    assert idle == [True, False, False, False]
    assert session.is_idle
    idle.clear()
    session.feed_padding(1, engine.clock())
    idle.append(session.is_idle)
    engine.ticks()
    idle.append(session.is_idle)
    session.take()
    assert idle == [False, False, False]
    assert session.is_idle

"""Leases and rows: ownership, and changes of a session between two ticks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from antiphon.engine.config import EngineConfig
from antiphon.engine.rows import Rows
from antiphon.engine.sessions import LeasePool
from antiphon.ipc.rings import Counts, RingReplies
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionStats
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, bench_of, frames, heard
from tests.engine.fakes import FRAME, FakeBackend


def rows_of(bench: Bench) -> Rows:
    return bench.engine.rows


def lease_of(session: Session) -> int:
    assert session.lease is not None
    return session.lease


def assert_adds_up(stats: SessionStats) -> None:
    assert stats.frames_in == stats.dropped_in + stats.flushed_in + stats.queue_frames + stats.frames_taken
    gone = stats.silent + stats.lost + stats.flushed_out + stats.dropped_out
    assert stats.frames_taken == gone + stats.reply_frames + stats.frames_out


def before_gather(bench: Bench, act: Callable[[], object]) -> None:
    """Act once between the engine's look at who is ready and its gathering of their frames."""
    begin = rows_of(bench).begin

    def begin_later(*args: object, **more: object) -> object:
        rows_of(bench).begin = begin  # type: ignore[method-assign]
        act()
        return begin(*args, **more)  # type: ignore[arg-type]

    rows_of(bench).begin = begin_later  # type: ignore[method-assign, assignment]


def before_publish(bench: Bench, act: Callable[[], object]) -> None:
    """Act once after the engine has decided which replies are wanted, before they are published."""
    outputs = rows_of(bench).outputs
    publish = outputs.publish

    def publish_later(leases: Counts, replies: RingReplies) -> int:
        outputs.publish = publish  # type: ignore[method-assign]
        act()
        return publish(leases, replies)

    outputs.publish = publish_later  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", [before_gather, before_publish])
def test_a_flush_at_any_moment_of_a_tick_takes_every_frame_once(
    moment: Callable[[Bench, Callable[[], object]], None],
) -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1, 2)
    kept: list[int] = []
    moment(bench, lambda: kept.append(session.flush()))
    bench.ticks()
    assert kept == [2]
    assert session.take() == [], "replies to flushed frames never come"
    assert_adds_up(session.stats())
    bench.push(session, 3)
    bench.ticks()
    assert [reply.frame for reply in session.take()] == [2]
    stats = session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.flushed_in + stats.flushed_out, stats.frames_out) == (3, 2, 1)
    assert session.is_idle


@pytest.mark.parametrize("moment", [before_gather, before_publish])
def test_silence_interrupted_at_any_moment_of_a_tick_is_undone_and_has_no_reply(
    moment: Callable[[Bench, Callable[[], object]], None],
) -> None:
    bench = bench_of(PipelineKind.STT)
    session = bench.submit()
    bench.push(session, 1)
    bench.ticks()
    assert [reply.text_token for reply in session.take()] == [1]
    session.feed_padding(1, bench.clock())
    moment(bench, lambda: session.push(np.ones(FRAME // 2, np.float32), bench.clock()))
    bench.ticks()
    assert session.take() == []
    session.push(np.ones(FRAME // 2, np.float32), bench.clock())
    bench.ticks()
    assert [reply.text_token for reply in session.take()] == [2], "heard as if there had been no silence"


def test_a_session_gets_the_row_of_its_first_frame_whatever_others_do_meanwhile() -> None:
    bench = Bench(FakeBackend(slots=4))
    first, second = bench.submit(), bench.submit()
    bench.push(first, 1)
    bench.ticks()
    bench.clock.advance(0.05)  # five eighths of a frame
    bench.push(second, 2)
    bench.ticks()
    assert [step.rows.tolist() for step in bench.backend.steps] == [[0], [2]]


def test_a_lease_is_free_only_after_the_tick_that_used_it_and_is_clean_then() -> None:
    bench = Bench(FakeBackend(slots=1))
    old = bench.submit()
    lease = lease_of(old)
    bench.push(old, 7)
    new: list[Session] = []

    def change_hands() -> None:
        old.close()
        new.append(bench.submit())
        assert lease_of(new[0]) != lease
        bench.push(new[0], 8)

    bench.backend.during_step = change_hands
    bench.tick()
    bench.backend.during_step = lambda: None
    rows = rows_of(bench)
    assert rows.inputs.pcm[lease].any(), "the tick may still use it"
    bench.ticks()
    assert heard(new[0].take()) == [8]
    assert not rows.inputs.pcm[lease].any()
    assert rows.outputs.pcm is not None
    assert not rows.outputs.pcm[lease].any()
    assert (rows.ledger.taken[lease], rows.inputs.written[lease], rows.outputs.written[lease]) == (0, 0, 0)


def test_the_lease_used_last_is_the_next() -> None:
    bench = Bench(FakeBackend(slots=2))
    used = set()
    for _ in range(20):
        session = bench.submit()
        used.add(lease_of(session))
        bench.push(session, 1)
        bench.ticks()
        session.close()
        bench.ticks()
    assert len(used) == 1, "memory of rings that were never needed is never touched"


def test_who_waits_for_a_lease_has_it_with_the_end_of_the_tick() -> None:
    bench = Bench(FakeBackend(slots=1), config=EngineConfig(max_queue=4))
    session = bench.submit()
    bench.push(session, 1)
    waiting: list[Session] = []

    def come_and_go() -> None:
        leases = bench.engine.sessions.leases
        while leases.has_free():  # as if resumed calls had the others
            leases.take(0, is_held=False)
        session.close()
        waiting.append(bench.submit(wait_s=60))

    bench.backend.during_step = come_and_go
    bench.tick()
    assert str(waiting[0].state) == "queued"
    assert not bench.tick()
    assert str(waiting[0].state) == "active"


def test_the_engine_leaves_a_lease_alone_that_it_has_not_attached() -> None:
    bench = Bench()
    session = bench.submit()
    bench.push(session, 1, 2, 3)
    session.flush()
    rows = rows_of(bench)
    assert rows.ready(bench.clock()).size == 0
    lease = lease_of(session)
    assert (rows.inputs.taken[lease], rows.ledger.flushed_in[lease]) == (0, 0), "its session may clear it now"
    bench.ticks()
    assert rows.ledger.flushed_in[lease] == 3


def test_a_lease_of_a_front_end_is_wiped_when_both_have_let_it_go() -> None:
    wiped: list[int] = []
    leases = LeasePool(2, wiped.append)
    lease = leases.take(0, is_held=True)
    assert lease is not None
    leases.detached(lease)
    assert wiped == [], "what its front end may still read is there"
    other = leases.take(0, is_held=True)
    assert other not in (None, lease)
    assert not leases.has_free()
    leases.let_go([lease])
    assert wiped == [lease]
    assert leases.take(0, is_held=True) == lease
    assert other is not None
    leases.let_go([other])
    assert wiped == [lease], "the engine thread may still use it"
    leases.detached(other)
    assert wiped == [lease, other]


def test_a_lease_goes_back_to_the_pool_that_it_came_from() -> None:
    leases = LeasePool(4, lambda _: None, pools=2)
    lease = leases.take(1, is_held=True)
    assert lease is not None
    leases.give_back(lease)
    assert [leases.take(1, is_held=True) for _ in range(3)] == [2, 3, None]
    assert [leases.take(0, is_held=True) for _ in range(3)] == [0, 1, None]


def test_the_pool_with_the_most_free_leases_takes_the_next_call_of_another_worker() -> None:
    leases = LeasePool(4, lambda _: None, pools=2)
    assert leases.roomiest() == 0
    leases.take(0, is_held=True)
    assert leases.roomiest() == 1


def test_a_session_that_leaves_before_its_row_begins_leaves_no_changes_behind() -> None:
    bench = Bench()
    stays, leaves = bench.submit(), bench.submit()
    for number in range(3):
        for session in (stays, leaves):
            session.set_parameters(SamplingParameters(text_seed=number))
    leaves.close()
    assert len(bench.engine.rows.changes) == 4  # one row begins, and has three changes
    bench.push(stays, 1)
    bench.ticks()
    assert heard(stays.take()) == [1]
    assert bench.backend.rows[0].parameters.text_seed == 2


def test_a_flush_in_the_last_tick_of_a_session_counts_each_frame_once() -> None:
    bench = Bench()
    session = bench.calls.submit(SamplingParameters(max_steps=1))
    bench.push(session, 1, 2, 3)

    def change_mind() -> None:
        session.flush()
        bench.push(session, 4)

    bench.backend.during_step = change_mind
    bench.ticks()
    stats = session.stats()
    assert_adds_up(stats)
    assert (stats.frames_in, stats.flushed_in, stats.queue_frames) == (4, 3, 0)


def test_a_frame_that_comes_as_a_session_takes_its_last_step_does_not_wait_for_ever() -> None:
    bench = Bench()
    session = bench.calls.submit(SamplingParameters(max_steps=1))
    bench.push(session, 1)
    bench.ticks()
    session.take()
    is_over = bench.engine.rows.arena.engine.is_over
    is_over[session.lease] = False  # its sender had looked before the step ended
    session.push(frames(2), bench.clock())
    is_over[session.lease] = True
    bench.ticks()
    assert session.is_idle
    assert_adds_up(session.stats())

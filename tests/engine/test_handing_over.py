"""Calls that move from one engine to another, step by step."""

from __future__ import annotations

import threading

import pytest

from antiphon.engine.call_state import StateIdentity
from antiphon.engine.handover import AGAIN_S, LET_GO_S
from antiphon.engine.sessions import no_notices
from antiphon.errors import (
    HandOverError,
    HandOverRefusedError,
    MovedError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.ipc.messages import Moving
from antiphon.ipc.values import SessionState
from antiphon.models.sampling import SamplingParameters
from tests.engine.bench import heard
from tests.engine.resumed import KEY, NEXT, THIRD, armed, claim, lose_front_end, resume
from tests.engine.workers import PATIENCE_S, Worker, moved, ticked, two


def test_a_call_goes_on_where_it_was_in_another_engine() -> None:
    a, b = two()
    first = armed(a)
    first.take()
    first.note(((0, b"\\x12note"),), 1, b"kept")
    a.push(first, 3)
    a.tick()
    moved(a, first)
    assert isinstance(first.error, MovedError)
    assert (first.error.worker, str(first.error)) == ("b", "b: the call continues at this worker")
    ticked(a, lambda: a.engine.health().active == 0)  # its connection hears of it first
    assert b.engine.health().active == 1
    second = resume(b, claim(frame=0))
    assert second.resumption is not None
    assert (second.resumption.call, second.resumption.notes) == (first.id, ((0, b"\\x12note"),))
    assert second.resumption.kept == b"kept"
    assert second.next_frame == 3
    assert second.parameters.text_seed == 3
    b.ticks()
    b.push(second, 4)
    b.ticks()
    assert heard(second.take()) == [2, 3, 4]  # frame 1 again, which was on its way
    assert sum(int(step.reset.sum()) for step in b.backend.steps) == 0  # its row was not begun anew
    stats = second.stats()
    assert (stats.frames_in, stats.frames_taken, stats.lost) == (4, 4, 0)
    with pytest.raises(MovedError, match="b: the call continues at this worker"):
        resume(a, claim())
    ticked(a, lambda: a.read("hand_overs_total", outcome="sent") == 1)  # counted when its connection knows
    assert b.read("hand_overs_total", outcome="taken") == 1
    assert a.read("resumptions_total", outcome="moved") == b.read("resumptions_total", outcome="resumed") == 1


def test_parameters_that_the_row_did_not_have_yet_go_along() -> None:
    a, b = two()
    first = armed(a)
    first.set_parameters(SamplingParameters(text_seed=3, text_temperature=0.5))
    moved(a, first)
    second = resume(b, claim())
    b.push(second, 3)
    b.ticks()
    assert second.parameters.text_temperature == 0.5
    assert [row.parameters.text_temperature for row in b.backend.rows].count(0.5) == 1


@pytest.mark.parametrize(
    ("of_b", "words"),
    [
        (
            {"identity": StateIdentity("b2", "fake", "float32", "none")},
            "the row's state is of model a1, this process has b2",
        ),
        (
            {"identity": StateIdentity("a1", "fake 2", "float32", "none")},
            "the row's state is of backend fake, this process has fake 2",
        ),
        (
            {"identity": StateIdentity("a1", "fake", "float32", "none", schema=1)},
            "the row's state is of schema 2, this process has 1",
        ),
    ],
)
def test_a_call_that_the_other_engine_cannot_have_stays_and_is_resumed_here(
    of_b: dict[str, StateIdentity], words: str
) -> None:
    a, b = two(**of_b)
    first = armed(a)
    moved(a, first)
    assert isinstance(first.error, MovedError)
    assert first.error.worker == "a"
    with pytest.raises(UnsupportedError, match=words):
        b.taken(a.posted[0])
    second = resume(a, claim(frame=1))
    a.push(second, 3)
    a.ticks()
    assert heard(second.take()) == [1, 2, 3]  # whose text was not told before
    assert a.read("hand_overs_total", outcome="failed") == 1
    assert b.engine.health().active == 0


def sent(a: Worker) -> None:
    """Let the calls be sent that are due now."""
    handover = a.engine.handover
    assert handover is not None
    handover.begin("https://other")
    a.engine.plan()
    ticked(a, lambda: handover.next_event_s() > a.clock() and not handover.is_busy)


@pytest.mark.parametrize("is_free_later", [True, False])
def test_a_call_that_found_no_row_is_sent_once_more(is_free_later: bool) -> None:
    a, b = two(slots=1)
    other = b.submit()
    first = armed(a)
    first.detach()
    sent(a)
    sent(a)
    assert len(a.posted) == 1, "not before its time"
    assert isinstance(first.error, MovedError)
    assert first.error.worker == "a"
    if is_free_later:
        other.close()
        b.tick()
    for _ in range(3):
        a.clock.advance(AGAIN_S)
        sent(a)
    assert len(a.posted) == 2
    assert a.read("hand_overs_total", outcome="failed") == 1 + (not is_free_later)
    if is_free_later:
        assert resume(b, claim()).state is SessionState.ACTIVE
    else:
        assert resume(a, claim()).state is SessionState.ACTIVE


def test_a_refusal_that_is_final_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = two()
    armed(a).detach()

    def refuse(_: bytes) -> str:
        raise HandOverRefusedError("no")

    monkeypatch.setattr(b, "taken", refuse)
    for _ in range(2):
        sent(a)
        a.clock.advance(AGAIN_S)
    assert len(a.posted) == 1


def test_a_connection_that_cannot_be_asked_to_let_go_keeps_no_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = two()
    first, second = armed(a), a.submit()
    second.arm(NEXT, "")
    a.push(second, 1)
    a.ticks()
    guest = a.calls.engine_session(first)
    send = guest.send
    monkeypatch.setattr(guest, "send", lambda it: 1 / 0 if isinstance(it, Moving) else send(it))
    moved(a, second)
    assert isinstance(second.error, MovedError)
    assert second.error.worker == "b"
    assert isinstance(first.error, MovedError)
    assert first.error.worker == "a"
    assert resume(a, claim(KEY, THIRD)).state is SessionState.ACTIVE
    assert b.engine.health().active == 1


def test_a_connection_that_does_not_let_go_holds_up_the_next_call_for_its_time_only() -> None:
    a, _ = two()
    first, second = armed(a), a.submit()
    second.arm(NEXT, "")
    a.push(second, 1)
    a.ticks()
    a.calls.engine_session(first).send = no_notices  # its front end is stuck
    a.engine.drain("https://other")
    a.tick()
    assert not second.is_moving
    a.clock.advance(LET_GO_S)
    a.tick()
    assert second.is_moving


def test_a_call_that_ends_while_it_is_sent_holds_up_no_other_call() -> None:
    a, b = two()
    first, second = armed(a), a.submit()
    second.arm(NEXT, "")
    a.push(second, 1)
    a.ticks()
    is_sending, may_send = threading.Event(), threading.Event()
    taken = b.taken

    def slowly(data: bytes) -> str:
        is_sending.set()
        assert may_send.wait(PATIENCE_S)
        return taken(data)

    b.taken = slowly  # type: ignore[method-assign]
    a.engine.drain("https://other")
    first.detach()
    ticked(a, is_sending.is_set)
    a.engine.sessions.end(a.calls.engine_session(first), SessionFailedError("it ends"))
    a.engine.settle()
    assert second.is_moving
    may_send.set()
    ticked(a, lambda: a.read("hand_overs_total", outcome="sent") == 1)
    second.detach()
    ticked(a, lambda: second.state is SessionState.CLOSED)
    assert isinstance(second.error, MovedError)


def test_who_claims_a_call_that_is_leaving_hears_where_it_went() -> None:
    a, b = two()
    first = armed(a)
    first.detach()
    begin, is_claimed = threading.Event(), threading.Event()
    taken = b.taken

    def claimed_meanwhile(data: bytes) -> str:
        begin.set()
        assert is_claimed.wait(PATIENCE_S)
        return taken(data)

    b.taken = claimed_meanwhile  # type: ignore[method-assign]
    a.engine.drain("https://other")
    ticked(a, begin.is_set)
    waiting = [a.calls.resume(claim())]
    is_claimed.set()
    ticked(a, lambda: waiting[0].state is SessionState.CLOSED)
    assert isinstance(waiting[0].error, MovedError)
    assert waiting[0].error.worker == "b"
    ticked(a, lambda: a.engine.health().active == 0)


def test_what_a_killed_front_end_did_not_record_goes_to_the_next_worker_and_counts_once() -> None:
    a, b = two()
    first = armed(a)
    first.take()
    lose_front_end(a, first)
    a.engine.drain("https://other")
    ticked(a, lambda: a.engine.health().active == 0)
    second = resume(b, claim(frame=1))
    assert second.resumption is not None
    assert (second.resumption.unrecorded_in, second.resumption.unrecorded_out) == (2, 2)
    b.push(second, 3)
    b.ticks()
    assert heard(second.take()) == [3]
    second.detach()
    third = resume(b, claim(NEXT, THIRD, frame=2))
    assert third.resumption is not None
    assert (third.resumption.unrecorded_in, third.resumption.unrecorded_out) == (0, 0)


def test_what_a_connection_has_recorded_comes_to_no_other_worker() -> None:
    a, b = two()
    first = armed(a)
    first.take()
    moved(a, first)
    second = resume(b, claim(frame=1))
    assert second.resumption is not None
    assert (second.resumption.unrecorded_in, second.resumption.unrecorded_out) == (0, 0)


def test_a_call_goes_further_and_not_to_an_engine_that_leaves() -> None:
    a, b = two()
    moved(a, armed(a))
    c = Worker("c")
    b.other = c
    moved(b, resume(b, claim()))
    assert resume(c, claim(NEXT, THIRD)).state is SessionState.ACTIVE
    c.engine.stop(0.0)
    with pytest.raises(HandOverError, match="this worker is shutting down, too"):
        c.taken(a.posted[0])

"""Calls that leave one engine for another, in slow motion; and rows that change hands while things break."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.engine.call_state import FACTS, MAX_HEADER_BYTES, StateIdentity, pack, unpack_call
from antiphon.engine.handover import AGAIN_S, LET_GO_S, HandOverPlan
from antiphon.engine.sessions import no_notices
from antiphon.errors import (
    HandOverError,
    HandOverRefusedError,
    MovedError,
    ServerFullError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.ipc.messages import Moving
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.sampling import SamplingParameters
from tests.engine.bench import Bench, heard
from tests.engine.fakes import FakeBackend
from tests.engine.test_resuming import KEY, NEXT, THIRD, armed, claim, lose_front_end, resume

IDENTITY = StateIdentity("a1", "fake", "float32", "none")
PATIENCE_S = 30.0


class Worker(Bench):
    """An engine that hands its calls over to ``other``, whatever the address."""

    other: Worker
    posted: list[bytes]

    def __init__(self, name: str, *, slots: int = 4, identity: StateIdentity = IDENTITY) -> None:
        self.posted = []

        def post(target: str, data: bytes) -> str:
            assert target == "https://other"
            self.posted.append(data)
            return self.other.taken(data)

        super().__init__(
            FakeBackend(slots=slots),
            hand_over=lambda _: HandOverPlan(name, identity, post, PATIENCE_S),
        )
        self.name = name

    def taken(self, data: bytes) -> str:
        """Take a call, with the ticks that this needs."""
        future = self.engine.take_call(lambda: data)
        ticked(self, future.done)
        future.result()
        return self.name


def ticked(bench: Bench, is_so: Callable[[], bool]) -> None:
    """Tick until something holds that another thread does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        bench.tick()
        time.sleep(0.001)


def two(**of_b: object) -> tuple[Worker, Worker]:
    a, b = Worker("a"), Worker("b", **of_b)  # type: ignore[arg-type]
    a.other = b
    return a, b


def moved(a: Worker, session: Session) -> None:
    """Let a call leave, as a drain does, until its connection hears where it is."""
    a.engine.drain("https://other")
    ticked(a, lambda: session.is_moving)
    session.detach()
    ticked(a, lambda: session.state is SessionState.CLOSED)


def test_a_call_goes_on_where_it_was_in_another_engine() -> None:
    a, b = two()
    first = armed(a)
    first.take()
    first.note(((0, b"\\x12note"),), 1)
    a.push(first, 3)
    a.tick()
    moved(a, first)
    assert isinstance(first.error, MovedError)
    assert (first.error.worker, str(first.error)) == ("b", "b: the call goes on at this worker")
    ticked(a, lambda: a.engine.health().active == 0)  # its connection hears of it first
    assert b.engine.health().active == 1
    second = resume(b, claim(frame=0))
    assert second.resumption is not None
    assert (second.resumption.call, second.resumption.notes) == (first.id, ((0, b"\\x12note"),))
    assert second.next_frame == 3
    assert second.parameters.text_seed == 3
    b.ticks()
    b.push(second, 4)
    b.ticks()
    assert heard(second.take()) == [2, 3, 4]  # frame 1 again, which was on its way
    assert sum(int(step.reset.sum()) for step in b.backend.steps) == 0  # its row was not begun anew
    stats = second.stats()
    assert (stats.frames_in, stats.frames_taken, stats.lost) == (4, 4, 0)
    with pytest.raises(MovedError, match="b: the call goes on at this worker"):
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


def test_a_call_that_is_not_read_when_the_engine_stops_is_refused() -> None:
    b = Worker("b")
    is_reading, may_read = threading.Event(), threading.Event()

    def slowly() -> bytes:
        is_reading.set()
        assert may_read.wait(PATIENCE_S)
        return b""

    b.engine.take_call(slowly)
    assert is_reading.wait(PATIENCE_S)
    waiting = b.engine.take_call(lambda: b"")
    b.engine.stop(0.0)
    with pytest.raises(HandOverError, match="this worker is leaving too"):
        waiting.result(0)
    may_read.set()


def spoilt(data: bytes, part: str, name: str, place: Any, value: float, *, is_time: bool = False) -> bytes:
    """A call of which one number is another."""
    state = unpack_call(data, IDENTITY)
    arrays = {key: array.copy() for key, array in getattr(state, part).items()}
    target = arrays[name].view(np.float64) if is_time else arrays[name]
    target[place] = value
    changed: dict[str, Any] = {part: arrays}
    return replace(state, **changed).pack(IDENTITY)


@pytest.mark.parametrize(
    ("part", "name", "place", "value", "is_time", "words"),
    [
        ("lease", "caller", 1, -1, False, "a call's counters have a number out of range: 0 to"),
        ("lease", "engine", 3, 2**62, False, "a call's counters have a number out of range: 0 to"),
        ("lease", "engine", -1, math.nan, True, "a call's times have a number out of range"),
        ("lease", "in_marks", (-1, 0), -5, False, "a call's frames have a number out of range"),
        ("lease", "in_marks", (-1, 1), math.inf, True, "a call's times of frames have a number"),
        ("lease", "out_marks", (0, 0), -1, False, "a call's frames of replies have a number"),
        ("lease", "out_marks", (0, 2), 10**6, False, "a call's tokens have a number out of range: -1 to"),
        ("lease", "out_marks", (0, 6), math.nan, True, "a call's times of replies have a number"),
        ("lease", "out_pcm", (0, 0), math.nan, False, "a call's out_pcm have a number out of range"),
        ("row", "row", 3, math.nan, False, "the row's row has a number out of range: -1e"),
    ],
)
def test_numbers_out_of_range_are_refused_and_harm_no_other_call(
    part: str, name: str, place: Any, value: float, is_time: bool, words: str
) -> None:
    a, b = two()
    moved(a, armed(a))
    c = Worker("c")
    talking = c.submit()
    with pytest.raises(UnsupportedError, match=words):
        c.taken(spoilt(a.posted[0], part, name, place, value, is_time=is_time))
    c.tick()
    assert c.engine.health().active == 1
    c.push(talking, 3)
    c.ticks()
    assert heard(talking.take()) == [3]
    assert resume(b, claim()).state is SessionState.ACTIVE  # the call as it was


def test_messages_that_are_not_those_before_the_next_are_refused() -> None:
    a, _b = two()
    first = armed(a)
    first.note(((0, b"a"), (1, b"b")), 1)
    moved(a, first)
    state = unpack_call(a.posted[0], IDENTITY)
    facts = replace(state.facts, notes=((0, b"a"), (5, b"b")))
    with pytest.raises(UnsupportedError, match=r"are no facts of a call: messages .* are not those before 2"):
        Worker("c").taken(replace(state, facts=facts).pack(IDENTITY))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("[" * 100_000, "100000 characters are no facts of a call: Expected `object`, got `array`"),
        ('{"call": 1}', "11 characters are no facts of a call: Expected `str`, got `int`"),
    ],
)
def test_facts_of_another_form_are_refused(facts: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        unpack_call(pack({}, IDENTITY, {FACTS: facts}), IDENTITY)


def test_a_call_without_a_name_is_refused() -> None:
    a, _b = two()
    moved(a, armed(a))
    state = unpack_call(a.posted[0], IDENTITY)
    with pytest.raises(UnsupportedError, match="are no facts of a call: Expected `str` of length >= 1"):
        unpack_call(replace(state, facts=replace(state.facts, call="")).pack(IDENTITY), IDENTITY)


def test_an_engine_without_a_row_refuses_and_a_call_comes_once() -> None:
    a, b = two(slots=1)
    first = armed(a)
    moved(a, first)
    with pytest.raises(ServerFullError, match="all 1 rows are taken"):
        b.taken(a.posted[0])
    resume(b, claim()).close()
    with pytest.raises(HandOverError, match="this worker has this call already, or had it"):
        b.taken(a.posted[0])
    assert b.engine.health().active == 0


def test_who_claims_a_call_that_is_leaving_hears_where_it_went() -> None:
    a, _b = two()
    first = armed(a)
    first.detach()
    begin, is_claimed = threading.Event(), threading.Event()
    post = a.engine.handover._plan.post  # type: ignore[union-attr]

    def claimed_meanwhile(target: str, data: bytes) -> str:
        begin.set()
        assert is_claimed.wait(PATIENCE_S)
        return post(target, data)

    object.__setattr__(a.engine.handover._plan, "post", claimed_meanwhile)  # type: ignore[union-attr]
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
    armed(a).take()
    lose_front_end(a, KEY)
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
    with pytest.raises(HandOverError, match="this worker is leaving too"):
        c.taken(a.posted[0])


def test_an_engine_without_a_secret_takes_no_call() -> None:
    future: Future[None] = Bench().engine.take_call(lambda: b"")
    with pytest.raises(HandOverError, match="no calls are taken here: there is no hand_over_secret"):
        future.result()


def test_an_arrival_whose_sender_waits_no_more_harms_no_other_call() -> None:
    a, _b = two()
    moved(a, armed(a))
    c = Worker("c")
    talking = c.submit()
    arriving = c.engine.take_call(lambda: a.posted[0])
    deadline_s = time.monotonic() + PATIENCE_S
    while c.engine.health().active < 2:  # it has a row, and not its state yet
        assert time.monotonic() < deadline_s
        c.calls.loop.run()
        time.sleep(0.001)
    arriving.cancel()
    c.push(talking, 3)
    c.ticks()
    assert heard(talking.take()) == [3]
    assert not c.losses


def stated(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\x02\0\0\0\0\0\0\0{}",
        stated(b"[" * 100_000),
        stated(b" " * (MAX_HEADER_BYTES + 1)),
    ],
    ids=["nothing", "no header", "no model", "nested", "a long header"],
)
def test_bytes_that_are_no_call_are_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedError, match="bytes are no state of a row"):
        Worker("a").taken(data)


# A row that changes its connection.


def test_a_device_that_is_lost_ends_a_connection_that_waits_for_a_call() -> None:
    bench = Bench()
    armed(bench).detach()
    second = bench.calls.resume(claim())
    bench.engine._lose(RuntimeError("gone"))
    assert isinstance(second.error, SessionFailedError)


def test_a_successor_that_leaves_while_the_row_is_moved_leaves_the_call_and_no_row_behind() -> None:
    bench = Bench(FakeBackend(slots=1))
    armed(bench).detach()
    bench.calls.resume(claim()).close()
    bench.tick()
    assert bench.engine.health().active == 1
    third = resume(bench, claim(KEY, THIRD))
    assert third.state is SessionState.ACTIVE
    bench.push(third, 3)
    assert bench.ticks() == 1
    third.close()
    bench.tick()
    assert bench.engine.health().active == 0


def test_only_a_call_that_goes_on_counts_as_resumed() -> None:
    bench = Bench()
    first = armed(bench)
    first.detach()
    second = bench.calls.resume(claim())
    assert bench.read("resumptions_total", outcome="resumed") == 0
    second.close()  # before the engine thread came to it
    bench.tick()
    assert bench.read("resumptions_total", outcome="resumed") == 0
    resume(bench, claim())
    assert bench.read("resumptions_total", outcome="resumed") == 1


def test_a_row_that_fails_while_its_call_changes_hands_twice_is_free_afterwards() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = armed(bench)
    lease = bench.calls.engine_session(first).lease
    assert lease is not None
    first.detach()
    second = bench.calls.resume(claim())
    second.detach()
    third = bench.calls.resume(claim(NEXT, THIRD))
    bench.engine.rows.fail(lease, SessionFailedError("the step failed"))
    bench.tick()
    assert str(third.error) == "the step failed"
    assert bench.engine.health().active == 0
    newcomer = bench.submit()
    bench.push(newcomer, 1)
    bench.ticks()
    assert heard(newcomer.take()) == [1]


def test_a_connection_that_is_at_fault_while_its_row_goes_to_another_ends_alone() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = armed(bench)
    first.take()
    guest = bench.calls.engine_session(first)
    first.detach()
    second = bench.calls.resume(claim(frame=1))
    bench.engine.sessions.end(guest, SessionFailedError("at fault"))
    bench.tick()
    assert (str(first.error), second.state) == ("at fault", SessionState.ACTIVE)
    assert bench.engine.health().active == 1
    bench.push(second, 3)
    bench.ticks()
    assert heard(second.take()) == [3]
    second.close()
    assert bench.engine.health().active == 0

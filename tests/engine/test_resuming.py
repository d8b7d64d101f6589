"""Calls that change their connection, step by step: rows, replies, tokens, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.engine.config import EngineConfig
from antiphon.engine.resume import MAX_NOTES, MAX_NOTES_BYTES
from antiphon.engine.sessions import EngineSession, no_notices
from antiphon.engine.values import EngineLost
from antiphon.errors import ReplacedError, ResumeError, SessionFailedError
from antiphon.ipc.messages import Noted
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.sampling import SamplingParameters
from tests.engine.bench import Bench, heard
from tests.engine.fakes import FakeBackend
from tests.engine.resumed import KEY, NEXT, THIRD, armed, claim, lose_front_end, resets, resume


def test_the_row_its_state_and_its_replies_go_over() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = armed(bench)
    first.take()
    bench.push(first, 3)
    first.detach()
    assert bench.ticks() == 0  # it takes no step
    second = resume(bench, claim(frame=0))
    assert (first.state, type(first.error)) == (SessionState.CLOSED, ReplacedError)
    assert second.state is SessionState.ACTIVE
    assert second.next_frame == 3
    assert second.resumption is not None
    assert (second.resumption.call, second.resumption.replay_from) == (first.id, 1)
    bench.ticks()
    bench.push(second, 4)
    bench.ticks()
    assert heard(second.take()) == [2, 3, 4]  # frame 1 again, whose audio was lost; the row was not reset
    assert second.parameters.text_seed == 3
    assert resets(bench) == 1
    assert bench.engine.health().active == 1
    stats = second.stats()
    assert (stats.frames_in, stats.frames_taken, stats.lost) == (4, 4, 0)


def test_a_claim_that_comes_between_two_looks_at_the_leases_resets_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    first = armed(bench)
    first.take()
    first.detach()
    bench.tick()
    found: list[Session] = []
    settle = bench.engine.rows.settle

    def settle_and_be_claimed() -> None:
        settle()
        if not found:
            found.append(bench.calls.resume(claim(frame=1)))

    monkeypatch.setattr(bench.engine.rows, "settle", settle_and_be_claimed)
    bench.tick()
    bench.tick()
    (second,) = found
    bench.push(second, 3)
    bench.ticks()
    assert heard(second.take()) == [3]
    assert resets(bench) == 1


def test_the_first_audio_of_a_call_counts_once_over_all_its_connections() -> None:
    bench = Bench()
    first = armed(bench)
    for reply in first.take():
        first.sent(reply, bench.clock())
    first.detach()
    second = resume(bench, claim(frame=1))
    bench.push(second, 3)
    bench.ticks()
    for reply in second.take():
        second.sent(reply, bench.clock())
    assert bench.read("first_audio_seconds_count") == 1


def test_what_front_ends_that_are_gone_did_not_record_comes_with_the_call() -> None:
    bench = Bench()
    first = armed(bench)
    first.take()
    lose_front_end(bench, first)
    second = resume(bench, claim(frame=0))
    assert second.resumption is not None
    assert (second.resumption.unrecorded_in, second.resumption.unrecorded_out) == (2, 2)
    assert second.resumption.replayed == 1
    bench.push(second, 3)
    bench.ticks()
    assert heard(second.take()) == [2, 3]
    lose_front_end(bench, second)
    third = resume(bench, claim(NEXT, THIRD, frame=2))
    assert third.resumption is not None
    assert (third.resumption.unrecorded_in, third.resumption.unrecorded_out) == (3, 3)
    assert third.resumption.replayed == 0
    third.detach()
    last = resume(bench, claim(THIRD, b"4" * 32, frame=2))
    assert last.resumption is not None
    assert (last.resumption.unrecorded_in, last.resumption.unrecorded_out) == (0, 0)


def test_replies_that_were_flushed_are_not_in_what_comes_with_the_call() -> None:
    bench = Bench()
    first = armed(bench)
    first.flush()
    bench.push(first, 3)
    bench.ticks()
    assert heard(first.take()) == [3]
    lose_front_end(bench, first)
    second = resume(bench, claim())
    assert second.resumption is not None
    assert (second.resumption.unrecorded_in, second.resumption.unrecorded_out) == (3, 1)
    assert second.resumption.replayed == 1
    begun_with = second.stats().frames_out
    assert heard(second.take()) == [3]  # nothing that was flushed comes again
    assert second.stats().frames_out - begun_with == second.resumption.replayed


def test_frames_that_were_recorded_before_the_model_heard_them_count_once() -> None:
    bench = Bench()
    first = armed(bench)
    first.take()
    bench.push(first, 3)
    first.detach()  # its front end records three frames
    second = resume(bench, claim(frame=1))
    bench.push(second, 4)
    bench.ticks()
    assert heard(second.take()) == [3, 4]
    lose_front_end(bench, second)
    third = resume(bench, claim(NEXT, THIRD, frame=3))
    assert third.resumption is not None
    assert (third.resumption.unrecorded_in, third.resumption.unrecorded_out) == (1, 2)


def test_a_token_is_good_once_and_the_former_one_until_something_was_acknowledged() -> None:
    bench = Bench()
    armed(bench).detach()
    second = resume(bench, claim())
    second.detach()
    third = resume(bench, claim(KEY, THIRD))  # the answer with NEXT was lost
    with pytest.raises(ResumeError, match="unknown: no resumable call has this token"):
        resume(bench, claim(NEXT, b"4" * 32))
    third.acknowledge(-1)
    words = "replaced: this token was used, and its call continues with another"
    with pytest.raises(ResumeError, match=words):
        resume(bench, claim(KEY, b"4" * 32))
    third.detach()
    assert resume(bench, claim(THIRD, b"4" * 32)).state is SessionState.ACTIVE
    assert bench.read("resumptions_total", outcome="resumed") == 3
    assert bench.read("resumptions_total", outcome="replaced") == 1


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"key": b"9" * 32}, "unknown: no resumable call has this token"),
        ({"owner": "eve"}, "unknown: this call was started with another API key"),
        ({"seq": 0}, "unknown: the client has message 0, of 0 that were noted"),
    ],
)
def test_who_may_not_resume(facts: dict[str, Any], words: str) -> None:
    bench = Bench()
    armed(bench).detach()
    with pytest.raises(ResumeError, match=words):
        resume(bench, claim(**facts))


def test_what_was_noted_and_not_acknowledged_is_told_again() -> None:
    bench = Bench()
    first = armed(bench)
    first.note(((0, b"a"), (1, b"b"), (2, b"c")), 2, b"kept")
    first.acknowledge(0)
    first.detach()
    second = resume(bench, claim(seq=1, frame=1))
    assert second.resumption is not None
    found = second.resumption
    assert (found.notes, found.next_seq, found.text_frame, found.kept) == (((2, b"c"),), 3, 2, b"kept")


@pytest.mark.parametrize("notes", [MAX_NOTES + 1, 1])
def test_a_call_with_too_much_that_was_not_acknowledged_cannot_be_resumed(notes: int) -> None:
    bench = Bench()
    first = armed(bench)
    data = b"x" * (MAX_NOTES_BYTES + 1) if notes == 1 else b"x"
    first.note(tuple((seq, data) for seq in range(notes)), 1)
    first.detach()
    assert (first.state, str(first.error)) == (SessionState.CLOSED, "unknown: the call cannot be resumed")
    with pytest.raises(ResumeError, match="unknown"):
        resume(bench, claim())


def test_time_ends_a_detached_call_and_one_who_waits_ends_it_sooner() -> None:
    bench = Bench(FakeBackend(slots=2), config=EngineConfig(resume_window_s=30, resume_yield_s=5))
    old = armed(bench)
    old.detach()
    bench.clock.advance(1.0)
    young = bench.submit()
    young.arm(NEXT, "")
    young.detach()
    bench.clock.advance(3.0)
    waiting = bench.submit(wait_s=60.0)
    bench.tick()
    assert waiting.position == 0
    bench.clock.advance(1.5)
    bench.tick()
    assert waiting.state is SessionState.ACTIVE
    assert str(old.error) == "expired: no connection for 5.5 s, and a caller waits for its row"
    assert young.state is SessionState.ACTIVE
    bench.clock.advance(26.0)
    bench.tick()
    assert str(young.error) == "expired: no connection for 30.5 s"
    with pytest.raises(ResumeError, match="expired: a call without a connection is kept for 30 s at most"):
        resume(bench, claim(NEXT, THIRD))


def test_the_caller_after_a_call_that_was_never_resumed_is_heard() -> None:
    bench = Bench(FakeBackend(slots=1), config=EngineConfig(resume_window_s=30))
    armed(bench).detach()
    bench.clock.advance(31.0)
    bench.tick()
    bench.tick()
    following = bench.submit()
    bench.push(following, 3)
    bench.ticks()
    assert heard(following.take()) == [3]


def test_a_resumed_call_keeps_its_row_for_itself() -> None:
    bench = Bench(FakeBackend(slots=2))
    armed(bench).detach()
    resumed = resume(bench, claim())
    bench.tick()
    other = bench.submit()
    bench.push(resumed, 3)
    bench.push(other, 4)
    bench.ticks()
    assert {step.count for step in bench.backend.steps[-1:]} == {2}
    assert heard(other.take()) == [4]
    assert heard(resumed.take())[-1] == 3


def test_parameters_that_no_tick_has_used_go_over_with_the_call() -> None:
    bench = Bench(FakeBackend(slots=1))
    first = armed(bench)
    first.set_parameters(SamplingParameters(text_seed=9))
    first.detach()
    second = resume(bench, claim())
    bench.push(second, 3)
    bench.ticks()
    assert bench.backend.rows[0].parameters.text_seed == 9


def test_a_server_that_leaves_resumes_nothing() -> None:
    bench = Bench()
    first = armed(bench)
    first.detach()
    bench.engine.drain()
    assert str(first.error) == "draining: the server is shutting down"
    with pytest.raises(ResumeError, match="draining"):
        resume(bench, claim())


def test_a_connection_lost_while_the_server_leaves_ends_its_call() -> None:
    bench = Bench()
    first = armed(bench)
    bench.engine.drain()
    first.detach()
    bench.tick()
    assert str(first.error) == "unknown: the call cannot be resumed"
    assert bench.engine.health().active == 0


def held(bench: Bench) -> tuple[EngineSession, Session]:
    """A call whose connection still stands, in another process, and one that waits for it."""
    guest = bench.calls.engine_session(armed(bench))
    guest.send = no_notices  # that process has not read yet that it is to let go
    successor = bench.calls.resume(claim())
    bench.tick()
    assert successor.state is SessionState.QUEUED
    return guest, successor


def test_a_connection_that_ends_before_it_has_the_call_leaves_it_for_the_next() -> None:
    bench = Bench(FakeBackend(slots=1))
    guest, successor = held(bench)
    successor.close()
    bench.engine.sessions.let_go(guest)  # as it was asked to
    third = resume(bench, claim(KEY, THIRD))
    assert third.state is SessionState.ACTIVE
    bench.push(third, 3)
    bench.ticks()
    assert heard(third.take()) == [1, 2, 3]
    third.close()
    assert bench.engine.health().active == 0


def test_a_call_that_is_being_resumed_as_the_server_begins_to_leave_goes_over() -> None:
    bench = Bench(FakeBackend(slots=1))
    guest, successor = held(bench)
    bench.engine.drain()
    bench.engine.sessions.let_go(guest)
    bench.tick()
    assert successor.state is SessionState.ACTIVE
    successor.close()
    assert bench.engine.health().active == 0


def test_a_call_that_was_left_for_another_connection_ends_with_the_server() -> None:
    bench = Bench(FakeBackend(slots=1))
    guest, successor = held(bench)
    successor.close()
    bench.engine.drain()
    bench.engine.sessions.let_go(guest)
    assert bench.engine.health().active == 0


def test_a_connection_that_gets_a_row_and_closes_as_the_server_leaves_keeps_no_row() -> None:
    bench = Bench(FakeBackend(slots=1))
    armed(bench).detach()
    second = bench.calls.resume(claim())
    bench.engine.drain()
    second.close()
    bench.tick()
    assert bench.engine.health().active == 0


def test_a_lease_that_was_given_back_is_not_let_go_for_the_next_session() -> None:
    bench = Bench(FakeBackend(slots=3))
    guest, successor = held(bench)
    waiting, failed = bench.calls.engine_session(successor), SessionFailedError("the step failed")
    waiting.send = no_notices  # its front end has not read yet that it has ended
    bench.engine.sessions.end(guest, failed)
    third = bench.calls.engine_session(bench.submit())
    lease, third.send = third.lease, no_notices
    successor.close()
    bench.engine.sessions.end(third, failed)
    bench.tick()
    assert bench.calls.engine_session(bench.submit()).lease != lease  # third's front end may write there


def test_who_waits_for_a_call_that_cannot_be_resumed_any_more_is_told() -> None:
    bench = Bench(FakeBackend(slots=1))
    guest, successor = held(bench)
    noted = Noted(guest.id, ((0, b"x" * (MAX_NOTES_BYTES + 1)),), 1)
    bench.engine.sessions.add_notes(guest, noted)
    assert successor.state is SessionState.CLOSED
    assert str(successor.error) == "unknown: the call has ended, or has too many unacknowledged messages"
    bench.engine.sessions.let_go(guest)
    assert bench.engine.health().active == 0


def test_a_call_has_one_token_from_its_front_end() -> None:
    bench = Bench()
    first, second = armed(bench), bench.submit()
    for session, key in ((second, KEY), (first, NEXT)):
        session.arm(key, "")
        assert "is resumable already, or its token belongs to another call" in str(session.error)


def test_a_device_that_is_lost_ends_a_connection_that_waits_for_a_call() -> None:
    bench = Bench()
    armed(bench).detach()
    second = bench.calls.resume(claim())
    bench.engine.rows.events.append(EngineLost(RuntimeError("gone")))
    bench.engine.settle()
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

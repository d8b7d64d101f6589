"""Admission: a row, a place in the queue, or a refusal with a retry time."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.admission import Admission, AdmissionOutcome, Changes, RefusedError
from antiphon.engine.config import EngineConfig
from antiphon.engine.metrics import LatePressure
from antiphon.errors import DrainingError

CONFIG = EngineConfig(max_queue=3, session_guess_s=120.0, retry_after_max_s=300)


@dataclass(eq=False)
class FakeCaller:
    is_active: bool = False

    def activate(self) -> bool:
        self.is_active = True
        return True


def make(slots: int = 2, config: EngineConfig = CONFIG) -> tuple[Admission[FakeCaller], LatePressure]:
    pressure = LatePressure(config)
    return Admission(slots, config, pressure, activate=FakeCaller.activate), pressure


def fill(admission: Admission[FakeCaller], count: int, now_s: float = 0.0) -> list[FakeCaller]:
    callers = [FakeCaller() for _ in range(count)]
    for caller in callers:
        assert admission.submit(caller, now_s, 0.0) is AdmissionOutcome.ADMITTED
    return callers


def press(pressure: LatePressure, now_s: float, *, late: int = 100, frames: int = 100) -> None:
    for index in range(frames):
        pressure.record_many(now_s, frames=1, late=int(index < late))


def test_a_full_server_says_what_is_to_do_about_its_rows() -> None:
    admission = Admission[FakeCaller](
        1, CONFIG, LatePressure(CONFIG), note="slots = auto chose 1", activate=FakeCaller.activate
    )
    assert admission.submit(FakeCaller(), 0.0, 0.0) is AdmissionOutcome.ADMITTED
    with pytest.raises(RefusedError, match=r"^the only row is in use; slots = auto chose 1$"):
        admission.submit(FakeCaller(), 0.0, 0.0)


def test_a_shortage_is_as_no_free_row() -> None:
    lacks: dict[FakeCaller | None, str] = {}
    admission = Admission[FakeCaller](
        4, CONFIG, LatePressure(CONFIG), activate=FakeCaller.activate, shortage=lambda it: lacks.get(it, "")
    )
    first, second, third = FakeCaller(), FakeCaller(), FakeCaller()
    admission.submit(first, 0.0, 0.0)
    assert (admission.missing(), admission.missing(new_callers=1)) == (0, 0)
    lacks[None] = lacks[second] = "pages are short"
    assert (admission.missing(), admission.missing(new_callers=1)) == (0, 1), "a detached call gives way"
    with pytest.raises(RefusedError, match="3 of 4 rows are free, but pages are short") as caught:
        admission.submit(second, 0.0, 0.0)
    assert caught.value.retry_after_s == 120
    admission.submit(second, 0.0, 60.0)
    admission.submit(third, 0.0, 60.0)
    del lacks[None]
    assert admission.settle(1.0).promoted == (), "the first in the queue lacks something, and keeps its place"
    lacks.clear()
    assert admission.settle(2.0).promoted == (second, third)


def test_full_without_waiting_is_refused_with_the_numbers() -> None:
    admission, _ = make(2)
    first, _ = fill(admission, 2)
    with pytest.raises(RefusedError) as caught:
        admission.submit(FakeCaller(), 0.0, 0.0)
    assert str(caught.value) == "all 2 rows are in use"  # no call has ended
    assert caught.value.retry_after_s == 60
    assert caught.value.outcome is AdmissionOutcome.FULL
    admission.leave(first, 10.0)
    fill(admission, 1, 10.0)
    with pytest.raises(RefusedError, match=r"^all 2 rows are in use; try again in 5 s$"):
        admission.submit(FakeCaller(), 10.0, 0.0)


@pytest.mark.parametrize("wait_s", [0.0, 5.0])
@pytest.mark.parametrize("is_draining", [False, True])
@pytest.mark.parametrize("callers", range(6))  # of two rows and three places in the queue
def test_to_ask_for_room_is_answered_as_to_want_it(callers: int, is_draining: bool, wait_s: float) -> None:
    admission, _ = make(2)
    for _ in range(callers):
        admission.submit(FakeCaller(), 0.0, 60.0)
    if is_draining:
        admission.drain()
    answers = []
    for ask in (lambda: admission.check(1.0, wait_s), lambda: admission.submit(FakeCaller(), 1.0, wait_s)):
        before = admission.load(1.0)
        try:
            ask()
            answers.append("")
        except (RefusedError, DrainingError) as error:
            answers.append(str(error))
            assert admission.load(1.0) == before
    assert answers[0] == answers[1]


def test_the_queue_is_first_come_first_served_and_bounded() -> None:
    admission, _ = make(1)
    (first,) = fill(admission, 1)
    waiting = [FakeCaller() for _ in range(3)]
    for index, caller in enumerate(waiting):
        assert admission.submit(caller, 0.0, 30.0) is AdmissionOutcome.QUEUED
        assert admission.position(caller) == index
    with pytest.raises(RefusedError, match="the only row is in use; callers waiting: 3 of at most 3"):
        admission.submit(FakeCaller(), 0.0, 30.0)
    departure = admission.leave(first, 10.0)
    assert departure.active_s == 10.0
    assert departure.changes == Changes(promoted=(waiting[0],), moved=(waiting[1], waiting[2]))
    assert [admission.position(caller) for caller in waiting] == [None, 0, 1]
    assert waiting[0].is_active


def test_waiting_ends_when_the_caller_said_and_not_before() -> None:
    admission, _ = make(1)
    fill(admission, 1)
    patient, hasty = FakeCaller(), FakeCaller()
    admission.submit(patient, 0.0, 30.0)
    admission.submit(hasty, 0.0, 5.0)
    assert admission.next_event_s(0.0) == 5.0
    assert admission.settle(4.9) == Changes()
    changes = admission.settle(5.0)
    assert [caller for caller, _ in changes.expired] == [hasty]
    (_, error) = changes.expired[0]
    assert str(error) == "no row became free within the 5 s this caller would wait"
    assert admission.next_event_s(5.0) == 30.0
    admission.settle(30.0)
    assert admission.next_event_s(30.0) is None


def test_whoever_gives_up_waiting_moves_those_behind() -> None:
    admission, _ = make(1)
    fill(admission, 1)
    one, two, three = (FakeCaller() for _ in range(3))
    for caller in (one, two, three):
        admission.submit(caller, 0.0, 30.0)
    departure = admission.leave(two, 1.0)
    assert departure.was_waiting
    assert departure.active_s is None
    assert departure.changes == Changes(moved=(three,))
    assert admission.leave(two, 1.0).was_waiting is False


def test_late_frames_stop_admission_and_the_queue_waits() -> None:
    admission, pressure = make(4)
    fill(admission, 1)
    press(pressure, 0.0, late=12)
    assert not admission.load(0.0).is_admitting
    with pytest.raises(RefusedError) as caught:
        admission.submit(FakeCaller(), 0.0, 0.0)
    assert caught.value.outcome is AdmissionOutcome.LATE
    assert str(caught.value) == (
        "12.0 % of the last 100 frames were late (admission stops above 5.0 %); try again in 5 s"
    )
    caller = FakeCaller()
    assert admission.submit(caller, 0.0, 60.0) is AdmissionOutcome.QUEUED
    assert admission.next_event_s(0.0) == pytest.approx(0.45), "looked at again once a cell of the window"
    assert admission.settle(3.0) == Changes()
    assert admission.settle(5.0).promoted == (caller,)
    assert admission.load(5.0).is_admitting


def test_an_idle_model_admits_at_once_however_late_its_last_frames_were() -> None:
    admission, pressure = make(4)
    (last,) = fill(admission, 1)
    press(pressure, 0.0)
    waiting = FakeCaller()
    admission.submit(waiting, 0.0, 60.0)
    assert admission.leave(last, 0.1).changes.promoted == (waiting,), "no row is in use: no wait"
    assert admission.load(0.1).is_admitting
    fill(admission, 1, 0.1)  # the first session began a new count
    admission.leave(waiting, 0.2)


def test_a_step_that_runs_on_after_its_session_ended_keeps_no_caller_out() -> None:
    admission, pressure = make(4)
    (last,) = fill(admission, 1)
    pressure.begin_step(0.0, rows=1, frame_s=0.08)
    admission.leave(last, 1.0)
    assert admission.load(5.0).is_admitting
    fill(admission, 1, 5.0)
    with pytest.raises(RefusedError, match="frames were late"):
        admission.submit(FakeCaller(), 5.0, 0.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["join", "wait", "leave", "late", "step", "settle"]), st.floats(0, 3)),
        max_size=60,
    )
)
def test_without_a_session_admission_is_open(actions: list[tuple[str, float]]) -> None:
    admission, pressure = make(3)
    now_s = 0.0
    for action, gap_s in actions:
        now_s += gap_s
        if action in ("join", "wait"):
            with contextlib.suppress(RefusedError):
                admission.submit(FakeCaller(), now_s, 5.0 if action == "wait" else 0.0)
        elif action == "leave" and admission.active():
            admission.leave(admission.active()[0], now_s)
        elif action == "late":
            press(pressure, now_s)
        elif action == "step":
            pressure.begin_step(now_s, rows=3, frame_s=0.08)
        else:
            admission.settle(now_s)
        if not admission.active():
            assert admission.load(now_s).is_admitting
            assert admission.load(now_s).queued == 0
            admission.check(now_s, 0.0)


def test_nobody_overtakes_the_queue() -> None:
    admission, pressure = make(4)
    fill(admission, 1)
    press(pressure, 0.0)
    waiting = FakeCaller()
    admission.submit(waiting, 0.0, 60.0)
    with pytest.raises(RefusedError):  # pressure has fallen and rows are free, but somebody was first
        admission.submit(FakeCaller(), 11.0, 0.0)
    assert admission.settle(11.0).promoted == (waiting,)


def test_retry_after_follows_measured_session_lengths() -> None:
    admission, _ = make(2)
    for _ in range(5):
        (caller,) = fill(admission, 1, 0.0)
        admission.leave(caller, 20.0)
    fill(admission, 2)
    waiting = [FakeCaller() for _ in range(3)]
    for caller in waiting:
        admission.submit(caller, 20.0, 60.0)
    assert [admission.retry_after_s(caller, 20.0) for caller in waiting] == [10, 20, 30]


def test_draining_admits_nobody_and_empties_the_queue() -> None:
    admission, _ = make(1)
    (active,) = fill(admission, 1)
    waiting = FakeCaller()
    admission.submit(waiting, 0.0, 60.0)
    assert admission.drain() == (waiting,)
    with pytest.raises(DrainingError, match="the server is shutting down and admits no new sessions"):
        admission.submit(FakeCaller(), 0.0, 60.0)
    assert admission.leave(active, 5.0).changes == Changes()
    load = admission.load(5.0)
    assert (load.active, load.queued, load.is_admitting, load.is_draining) == (0, 0, False, True)


@given(
    st.integers(1, 5), st.lists(st.sampled_from(["join", "wait", "leave", "settle", "drain"]), max_size=40)
)
def test_rows_are_never_shared_and_never_idle_while_somebody_waits(slots: int, actions: list[str]) -> None:
    admission, _ = make(slots)
    here: list[FakeCaller] = []
    now_s = 0.0
    for action in actions:
        now_s += 1.0
        caller = FakeCaller()
        if action == "leave" and here:
            admission.leave(here.pop(0), now_s)
        elif action == "settle":
            expired = [caller for caller, _ in admission.settle(now_s).expired]
            here = [caller for caller in here if caller not in expired]
        elif action == "drain":
            gone = admission.drain()
            here = [caller for caller in here if caller not in gone]
        elif action in ("join", "wait"):
            try:
                admission.submit(caller, now_s, 3.0 if action == "wait" else 0.0)
                here.append(caller)
            except (RefusedError, DrainingError):
                pass
        active = admission.active()
        assert all(caller.is_active for caller in active)
        assert len(active) <= slots
        load = admission.load(now_s)
        assert load.active == len(active)
        assert load.queued <= CONFIG.max_queue
        assert load.queued == 0 or load.active == slots
        assert load.active + load.queued == len(here)

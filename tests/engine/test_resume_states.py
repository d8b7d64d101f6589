"""Random walks over resumable calls use only the transitions of the table."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon.engine.config import EngineConfig
from antiphon.engine.resumable_call import TRANSITIONS, ResumableCall, ResumeState
from antiphon.engine.resume import MAX_NOTES_BYTES, Resuming
from antiphon.engine.sessions import no_notices
from antiphon.errors import MovedError, ResumeError, ServerFullError, SessionFailedError
from antiphon.ipc.messages import Noted
from antiphon.ipc.session import Session
from antiphon.ipc.values import ResumeClaim, SessionState
from tests.engine.bench import Bench, Calls
from tests.engine.fakes import FakeBackend

SLOTS = 2
WINDOW_S = 60.0
ANY = st.integers(0, 1000)


class Walk(RuleBasedStateMachine):
    """Connections come, break, return and overlap; workers take calls; what engines send may come late."""

    def __init__(self) -> None:
        super().__init__()
        config = EngineConfig(resume_window_s=WINDOW_S)
        self.bench = Bench(FakeBackend(slots=SLOTS), config=config)
        self.calls = Calls(self.bench.engine, is_started=True)  # its turns are rules
        self.numbers = itertools.count()
        self.keys: list[bytes] = []
        self.connected: list[Session] = []
        self.moving: list[ResumableCall] = []

    @property
    def resuming(self) -> Resuming:
        return self.bench.engine.sessions.resuming

    def key(self) -> bytes:
        self.keys.append(next(self.numbers).to_bytes(32, "little"))
        return self.keys[-1]

    def pick(self, which: int) -> Session:
        return self.connected[which % len(self.connected)]

    @precondition(lambda self: self.bench.engine.health().active < SLOTS)
    @rule()
    def begin(self) -> None:
        try:
            session = self.calls.submit()
        except ServerFullError:  # leases of calls that changed hands are free after the next tick
            return
        session.arm(self.key(), "")
        self.connected.append(session)
        self.bench.push(session, 1)

    @precondition(lambda self: self.connected)
    @rule(which=ANY)
    def break_off(self, which: int) -> None:
        if self.pick(which).state is not SessionState.CLOSED:
            self.pick(which).detach()

    @precondition(lambda self: self.connected)
    @rule(which=ANY)
    def hang_up(self, which: int) -> None:
        session = self.pick(which)
        self.connected.remove(session)
        session.close()

    @precondition(lambda self: self.keys)
    @rule(which=ANY)
    def end_padding(self, which: int) -> None:
        claim = ResumeClaim(self.keys[which % len(self.keys)], self.key(), "", -1, -1, 5)
        try:
            self.connected.append(self.calls.resume(claim))
        except (ResumeError, MovedError, ServerFullError):
            self.keys.pop()

    @precondition(lambda self: self.moving)
    @rule()
    def come_back_to_a_call_that_moves(self) -> None:
        with contextlib.suppress(ResumeError, MovedError, ServerFullError):
            claim = ResumeClaim(self.moving[-1].key, self.key(), "", -1, -1, 5)
            self.connected.append(self.calls.resume(claim))

    @rule(which=ANY)
    def say_too_much(self, which: int) -> None:
        """More than is kept for a client that acknowledges nothing, while it comes back."""
        calls = [call for call in self.resuming.movable() if call.state is ResumeState.ATTACHED]
        if calls:
            call = calls[which % len(calls)]
            session, send = call.session, call.session.send
            session.send = no_notices  # its front end has not read yet that it is to let go
            with contextlib.suppress(ServerFullError):
                self.connected.append(self.calls.resume(ResumeClaim(call.key, self.key(), "", -1, -1, 5)))
            session.send = send
            noted = Noted(session.id, ((call.next_seq, bytes(MAX_NOTES_BYTES + 1)),), 0)
            self.bench.engine.sessions.add_notes(session, noted)

    @rule(which=ANY)
    def begin_move(self, which: int) -> None:
        calls = self.resuming.movable()
        if calls:
            self.resuming.begin_move(call := calls[which % len(calls)])
            self.moving.append(call)

    @precondition(lambda self: self.moving)
    @rule(is_gone=st.booleans())
    def end_move(self, is_gone: bool) -> None:
        self.ended_move(self.moving.pop(), is_gone=is_gone)

    def ended_move(self, call: ResumableCall, *, is_gone: bool) -> None:
        for session, error in self.resuming.end_move(call, "another", is_gone=is_gone):
            self.bench.engine.sessions.end(session, error)

    @rule(which=ANY)
    def fail_a_row(self, which: int) -> None:
        rows = self.bench.engine.rows
        leases = [it for it in range(rows.arena.leases) if rows.entry_or_none(it) is not None]
        if leases:
            rows.fail(leases[which % len(leases)], SessionFailedError("the step failed"))

    @precondition(lambda self: self.connected)
    @rule(which=ANY)
    def be_at_fault(self, which: int) -> None:
        """A front end asks for what ends its session."""
        if self.pick(which).state is not SessionState.CLOSED:
            session = self.calls.engine_session(self.pick(which))
            self.bench.engine.sessions.end(session, SessionFailedError("at fault"))

    @rule()
    def tick(self) -> None:
        self.bench.tick()

    @rule()
    def turn(self) -> None:
        """The front end hears what the engine has said."""
        self.calls.turn()

    @rule(seconds=st.sampled_from([1.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)

    @invariant()
    def states_are_what_they_say(self) -> None:
        for call in self.resuming.movable():
            if call.state is ResumeState.ATTACHED:
                assert call.detached_s is None
                assert call.successor is None
            elif call.state is ResumeState.DETACHED:
                assert call.detached_s is not None
                assert call.successor is None
        assert self.bench.engine.health().active <= SLOTS

    def teardown(self) -> None:
        for call in self.moving:
            self.ended_move(call, is_gone=False)
        for _ in range(2):
            self.settle()
            for session in self.connected:
                session.close()
            self.settle()
            self.bench.clock.advance(2 * WINDOW_S)
            self.settle()
        engine = self.bench.engine
        assert (engine.health().active, self.resuming.detached) == (0, 0), "a call is left behind"
        assert not engine.loop.is_lost

    def settle(self) -> None:
        for _ in range(4):
            self.calls.turn()
            self.bench.tick()


PATHS = {
    "attached moving gone": (("begin_move", 0), ("end_move", True)),
    "attached moving attached": (("begin_move", 0), ("end_move", False)),
    "attached moving claimed": (("begin_move", 0), ("come_back_to_a_call_that_moves",), ("end_move", False)),
    "attached claimed attached": (("end_padding", 0), ("settle",)),
    "attached claimed detached": (("end_padding", 0), ("hang_up", 1), ("settle",)),
    "attached claimed gone": (("say_too_much", 0), ("settle",)),
    "attached gone": (("hang_up", 0), ("settle",)),
    "attached detached moving detached": (
        *(("break_off", 0), ("settle",)),
        *(("begin_move", 0), ("end_move", False)),
    ),
    "attached detached claimed detached": (
        *(("break_off", 0), ("settle",)),
        *(("end_padding", 0), ("hang_up", 1), ("settle",)),
    ),
    "attached detached gone": (("break_off", 0), ("settle",), ("wait", 50.0), ("wait", 50.0), ("settle",)),
}
"""What happens to a call, by the states that it goes through."""


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ResumeState, ResumeState]]:
    """The transitions of every call, each checked against the table."""
    seen: list[tuple[ResumeState, ResumeState]] = []
    enter = ResumableCall.enter

    def checked(call: ResumableCall, state: ResumeState) -> None:
        assert state in TRANSITIONS[call.state], f"{call.state} to {state}"
        seen.append((call.state, state))
        enter(call, state)

    monkeypatch.setattr(ResumableCall, "enter", checked)
    return seen


@pytest.mark.parametrize("path", PATHS)
def test_a_call_takes_every_transition_of_the_table(
    path: str, taken: list[tuple[ResumeState, ResumeState]]
) -> None:
    walk = Walk()
    for name, *arguments in (("begin",), ("settle",), *PATHS[path]):
        getattr(walk, name)(*arguments)
    states = list(map(ResumeState, path.split()))
    assert taken == list(itertools.pairwise(states))
    walk.teardown()


def test_the_paths_have_every_transition_of_the_table() -> None:
    paths = [list(map(ResumeState, path.split())) for path in PATHS]
    listed = {step for states in paths for step in itertools.pairwise(states)}
    assert listed == {(one, other) for one, others in TRANSITIONS.items() for other in others}


@pytest.mark.usefixtures("taken")
def test_a_call_takes_no_transition_that_is_not_in_the_table() -> None:
    run_state_machine_as_test(
        Walk,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            phases=[Phase.generate],
        ),
    )

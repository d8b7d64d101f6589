"""Each caller gets all of its own frames, in order, under any schedule.

The fake model answers a frame with its input, the number of frames its row took since the row was reset,
and their sum. A caller's frames hold values nobody else has, so a frame in the wrong hands, a lost one, a
repeated one, a row that was not reset or was reset too often, or state left behind by a move, all show.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon.engine.config import EngineConfig
from antiphon.errors import ServerFullError, StepError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from tests.engine.bench import Bench, pcm_of
from tests.engine.fakes import FRAME_S, FakeBackend, FakeClock

INPUT_FRAMES = 3
OUTPUT_FRAMES = 4
MAX_CALLERS = 40
SPREAD = 128
"""Values of one caller lie in a range of this size; sums stay exact in float32."""


class Caller:
    """A caller that knows what it said and checks what it hears."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.session: Session
        self.said = 0
        self.next_frame = 0
        self.last: tuple[int, int, float] | None = None  # frame, frames its row had taken, and their sum

    def value(self, frame: int) -> float:
        return float(self.number * SPREAD + frame % SPREAD)

    def check_replies(self) -> None:
        replies, interrupted_at = self.session.take_with_gap()
        for reply in replies:
            assert reply.frame >= max(self.next_frame, interrupted_at or 0), (
                "order, and nothing after a flush"
            )
            value, taken, total, seed, _ = (float(x) for x in pcm_of(reply)[:5])
            assert value == self.value(reply.frame), "its own frame, under its own index"
            assert seed == self.number, "its own parameters"
            if self.last is not None:
                last_frame, last_taken, last_total = self.last
                assert 1 <= taken - last_taken <= reply.frame - last_frame, "no frame twice, no reset between"
                if taken == last_taken + 1:
                    assert total == last_total + value, "the row's state followed it"
            elif reply.frame == 0:
                assert (taken, total) == (1, value), "the row was reset"
            self.last = (reply.frame, int(taken), total)
            self.next_frame = reply.frame + 1


class Callers(RuleBasedStateMachine):
    """Callers of a bench with few rows, driven by hypothesis."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.count = 0
        self.callers: list[Caller] = []

    @initialize(slots=st.integers(1, 6))
    def build(self, slots: int) -> None:
        config = EngineConfig(input_frames=INPUT_FRAMES, output_frames=OUTPUT_FRAMES, max_queue=3)
        self.bench = Bench(FakeBackend(slots=slots), config=config, clock=self.clock)

    @rule(wait_s=st.sampled_from([0.0, 0.0, 1.0]))
    def join(self, wait_s: float) -> None:
        if self.count == MAX_CALLERS:
            return
        self.count += 1
        caller = Caller(self.count)
        try:
            caller.session = self.bench.submit(wait_s=wait_s, seed=caller.number)
        except ServerFullError:
            return
        self.callers.append(caller)

    def pick(self, index: int) -> Caller | None:
        return self.callers[index % len(self.callers)] if self.callers else None

    @rule(index=st.integers(0, 9), count=st.integers(1, 5))
    def push(self, index: int, count: int) -> None:
        caller = self.pick(index)
        if caller is not None and caller.session.state is SessionState.ACTIVE:
            self.bench.push(caller.session, *(caller.value(caller.said + i) for i in range(count)))
            caller.said += count

    @rule(index=st.integers(0, 9))
    def take(self, index: int) -> None:
        caller = self.pick(index)
        if caller is not None:
            caller.check_replies()

    @rule(index=st.integers(0, 9))
    def flush(self, index: int) -> None:
        caller = self.pick(index)
        if caller is not None:
            at_frame = caller.session.flush()
            assert at_frame == caller.said
            caller.next_frame = max(caller.next_frame, at_frame)

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        caller = self.pick(index)
        if caller is not None:
            caller.session.close()
            self.callers.remove(caller)

    @rule()
    def tick(self) -> None:
        self.bench.tick()

    @precondition(lambda self: self.callers)
    @rule(what=st.sampled_from(["join", "leave", "push", "flush"]), index=st.integers(0, 9))
    def tick_while(self, what: str, index: int) -> None:
        """Somebody does something while the step runs."""
        actions: dict[str, Callable[[], None]] = {
            "join": lambda: self.join(1.0),
            "leave": lambda: (self.leave(index), self.join(0.0))[0],  # the row goes to another at once
            "push": lambda: self.push(index, 2),
            "flush": lambda: self.flush(index),
        }
        self.bench.backend.during_step = actions[what]
        self.bench.tick()
        self.bench.backend.during_step = lambda: None

    @rule(row=st.integers(0, 5))
    def tick_that_fails(self, row: int) -> None:
        before = {caller.number: caller.session.stats().lost for caller in self.callers}
        self.bench.backend.failures = [StepError(f"row {row}", rows=[row])]
        ticked = self.bench.tick()
        self.bench.backend.failures = []
        if ticked:
            executed = self.bench.backend.steps[-1].count
            failed = [caller for caller in self.callers if caller.session.error is not None]
            lost = sum(c.session.stats().lost - before[c.number] for c in self.callers if c not in failed)
            assert lost + len(failed) == executed, "those it touched ended, the others lost that one reply"
            for caller in failed:
                self.callers.remove(caller)

    @rule(seconds=st.sampled_from([FRAME_S, 0.6]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.bench.tick()
        for caller in [c for c in self.callers if isinstance(c.session.error, ServerFullError)]:
            self.callers.remove(caller)

    @invariant()
    def nothing_is_unaccounted_for(self) -> None:
        for caller in self.callers:
            stats = caller.session.stats()
            assert stats.frames_in == caller.said
            assert (
                stats.frames_in
                == stats.dropped_in + stats.flushed_in + stats.queue_frames + stats.frames_taken
            )
            assert stats.frames_taken == (
                stats.lost + stats.flushed_out + stats.dropped_out + stats.reply_frames + stats.frames_out
            )
            assert stats.queue_frames <= INPUT_FRAMES
            assert stats.reply_frames <= OUTPUT_FRAMES

    @invariant()
    def rows_are_taken_by_those_who_are_active(self) -> None:
        if not hasattr(self, "bench"):
            return
        health = self.bench.engine.health()
        active = [caller for caller in self.callers if caller.session.state is SessionState.ACTIVE]
        assert health.active == len(active)
        assert health.alive, health.detail

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.ticks()
        for caller in self.callers:
            assert caller.session.queue_frames == 0, "an active session with a frame is always served"
            caller.check_replies()
            caller.session.close()
        assert self.bench.engine.health().active == 0


TestCallers = Callers.TestCase
TestCallers.settings = settings(max_examples=150, stateful_step_count=60)

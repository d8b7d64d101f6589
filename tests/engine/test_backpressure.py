"""Recordings at full speed: nothing is dropped, and live callers are unaffected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import FloatArray
from antiphon.engine.config import EngineConfig
from antiphon.errors import SessionError
from antiphon.ipc.session import Session
from antiphon.ipc.values import FrameReply
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench
from tests.engine.fakes import FRAME, FRAME_S, FakeBackend, FakeClock, fake_spec

STT = fake_spec(PipelineKind.STT)


class File:
    """A caller that pushes as much of a recording as there is room for, whenever it is told of a change."""

    def __init__(self, engine: Bench, samples: int) -> None:
        self.engine = engine
        self.left: FloatArray = np.arange(1, samples + 1, dtype=np.float32)
        self.replies: list[FrameReply] = []
        self.session: Session = engine.submit(notify=self.go_on)
        self.go_on()

    def go_on(self) -> None:
        if not hasattr(self, "session"):
            return
        for reply in self.session.take():
            self.session.sent(reply, self.engine.clock())
            self.replies.append(reply)
        room = self.session.room_samples
        if self.left.size and room:
            self.session.push(self.left[:room], self.engine.clock())
            self.left = self.left[room:]
            if not self.left.size:
                self.session.finish()


@given(st.integers(1, 900), st.integers(2, 20), st.integers(1, 30))
def test_a_recording_of_any_length_is_heard_whole_through_any_queue(
    samples: int, input_frames: int, output_frames: int
) -> None:
    engine = Bench(
        FakeBackend(STT), config=EngineConfig(input_frames=input_frames, output_frames=output_frames)
    )
    file = File(engine, samples)
    engine.ticks()
    whole = -(-samples // FRAME)
    assert [reply.frame for reply in file.replies] == list(range(whole))
    assert engine.backend.rows[0].sum == sum(range(1, samples + 1, FRAME))
    stats = file.session.stats()
    assert (stats.dropped_in, stats.dropped_out, stats.lost) == (0, 0, 0)
    assert file.session.is_done


@pytest.mark.parametrize("files", [1, 3])
def test_a_live_frame_is_in_the_next_tick_whoever_floods(files: int) -> None:
    clock = FakeClock()
    backend = FakeBackend(STT, slots=8, step_s=lambda rows: 0.03, clock=clock)
    engine = Bench(backend, clock=clock)
    recordings = [File(engine, 100 * FRAME) for _ in range(files)]
    live = engine.submit()
    due_s = clock.now_s
    waits_ms = []
    for _ in range(20):
        due_s += FRAME_S
        while clock.now_s < due_s:
            assert engine.tick()
        engine.push(live, 1.0)
        engine.tick()
        (reply,) = live.take()
        live.sent(reply, clock.now_s)
        waits_ms.append(reply.wait_ms)
    assert max(waits_ms) == 0.0  # it came between two ticks; within one it would wait for that one
    engine.ticks()
    assert all(len(recording.replies) == 100 for recording in recordings)
    assert engine.engine.health().ready  # a flood's own delays shut nobody out
    assert [session.stats().late for session in (live, *(it.session for it in recordings))] == [0] * (
        1 + files
    )
    assert engine.read("late_frames_total") == 0


def test_a_session_without_room_is_left_out_and_holds_up_nobody() -> None:
    engine = Bench(FakeBackend(STT), config=EngineConfig(input_frames=4, output_frames=2))
    deaf, other = engine.submit(), engine.submit()
    engine.push(deaf, *[1.0] * 4)
    engine.push(other, *[1.0] * 2)
    assert engine.ticks() == 2
    assert deaf.room_samples == 2 * FRAME
    with pytest.raises(SessionError, match="24 samples were pushed where 16 fit"):
        engine.push(deaf, 1.0, 1.0, 1.0)
    assert len(other.take()) == 2
    assert deaf.stats().queue_frames == 2
    assert [reply.frame for reply in deaf.take()] == [0, 1]
    engine.ticks()
    assert [reply.frame for reply in deaf.take()] == [2, 3]

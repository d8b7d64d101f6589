"""Writers, readers and the engine on separate threads: no torn frames, no crosstalk."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from antiphon.engine.engine import Engine
from antiphon.engine.metrics import EngineMetrics
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState, SessionStats
from tests.engine.bench import Calls
from tests.engine.echo import EchoBackend, Frames
from tests.engine.fakes import MODEL
from tests.support.calm import calm

LEAST_S = 3.0
MOST_S = 240.0
CALLERS = 4
CONFIG = calm(input_frames=2, output_frames=3, max_queue=CALLERS)


class Harness:
    """The engine, threads that run until the time is over, and what went wrong on any of them."""

    def __init__(self) -> None:
        backend = EchoBackend(CALLERS)
        self.engine = Engine(backend, CONFIG, metrics=EngineMetrics(CollectorRegistry(), model=MODEL))
        self.is_over = threading.Event()
        self.failures: list[BaseException] = []
        self.stats: list[SessionStats] = []
        self.checked = 0

    @property
    def is_enough(self) -> bool:
        """Whether something was tested, however slow the machine."""
        return self.checked > 100 and len(self.stats) > CALLERS

    def thread(self, run: object, *args: object) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*args)  # type: ignore[operator]
            except BaseException as error:  # shown by the test, on its own thread
                self.failures.append(error)
                self.is_over.set()

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def call(self, calls: Calls, caller: int) -> Iterator[None]:
        """Session after session: one thread writes, another reads, and they end at any moment."""
        number = 0
        while not self.is_over.is_set():
            number += 1
            session = calls.submit(wait_s=120.0)
            while session.state is SessionState.QUEUED:
                yield
            assert session.state is SessionState.ACTIVE
            frames = Frames(1000 * caller + number)
            is_over = threading.Event()
            reader = self.thread(self.read, session, frames, is_over)
            writer = self.thread(self.write, session, frames)
            while writer.is_alive():
                yield
            is_over.set()
            reader.join()
            session.close()
            self.stats.append(session.stats())
            self.checked += frames.checked

    def write(self, session: Session, frames: Frames) -> None:
        for frame in range(60):
            half = frames.make(frame)
            session.push(half[:700], time.monotonic())
            session.push(half[700:], time.monotonic())
            time.sleep(0.0002 * (frame % 3))

    def read(self, session: Session, frames: Frames, is_over: threading.Event) -> None:
        while not is_over.is_set():
            for reply in session.take():
                assert reply.pcm is not None
                frames.check(reply.frame, reply.pcm)


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads change a thousand times as often as usual."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before_s)


@pytest.mark.usefixtures("hurried_threads")
def test_no_frame_is_torn_or_anothers() -> None:
    harness = Harness()
    harness.engine.start()
    calls = Calls(harness.engine, is_started=True)
    callers = [harness.call(calls, caller) for caller in range(1, CALLERS + 1)]
    begun_s = time.monotonic()
    while callers:
        spent_s = time.monotonic() - begun_s
        if spent_s > MOST_S or (spent_s > LEAST_S and harness.is_enough):
            harness.is_over.set()
        callers = [caller for caller in callers if next(caller, caller) is None]
        calls.turn(0.001)
    if harness.failures:
        raise harness.failures[0]
    assert harness.engine.health().alive
    assert harness.is_enough
    for stats in harness.stats:
        gone = stats.silent + stats.lost + stats.flushed_out + stats.dropped_out
        assert stats.frames_taken == gone + stats.frames_out
        assert stats.frames_in == stats.dropped_in + stats.flushed_in + stats.frames_taken == 60
    assert harness.engine.stop(30.0)

"""When a stage runs, is captured and is replayed, with a recording fake of CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from antiphon.backends.torch.pipeline import StageRunner

CUDA = torch.device("cuda", 1)
CUDNN: Any = torch.backends.cudnn


@dataclass
class Notes:
    """What was asked of CUDA: ``did`` in order, and the memory pool of every capture."""

    did: list[str] = field(default_factory=list)
    pools: list[Any] = field(default_factory=list)
    current: torch.device | None = None
    stream: Any = None
    is_capturing: bool = False


class FakeGraph:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def replay(self) -> None:
        self._notes.did.append("replay")


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        assert isinstance(stream, FakeStream)

    def elapsed_time(self, end: object) -> float:
        return 1.5


class FakeStream:
    """A stream that work is put on; ``behind`` are those whose work it was made to wait for."""

    def __init__(self, notes: Notes, device: torch.device) -> None:
        self._notes, self.device = notes, device
        self.behind: list[FakeStream] = []

    def synchronize(self) -> None:
        self._notes.did.append("wait")

    def wait_stream(self, other: FakeStream) -> None:
        self.behind.append(other)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    notes, precision = Notes(), CUDNN.conv.fp32_precision
    CUDNN.conv.fp32_precision = "tf32"
    notes.stream = FakeStream(notes, CUDA)

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        notes.current = device
        yield
        notes.current = None

    @contextmanager
    def on_stream(stream: object) -> Iterator[None]:
        """As torch's: what is current inside ends with the block."""
        before = notes.stream
        notes.stream = stream
        try:
            yield
        finally:
            notes.stream = before

    @contextmanager
    def capture(graph: FakeGraph, *, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        before = notes.stream
        assert notes.current == CUDA
        assert isinstance(stream, FakeStream)
        assert stream.device == CUDA
        assert capture_error_mode == "thread_local"
        notes.pools.append(pool)
        notes.is_capturing = True
        notes.stream = stream
        yield  # torch's restores the stream after it has ended the capture, which may raise
        notes.is_capturing = False
        notes.stream = before

    monkeypatch.setattr(torch.cuda, "device", on_device)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(notes))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(notes, device))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: notes.stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    yield notes
    CUDNN.conv.fp32_precision = precision


def run(runner: StageRunner, notes: Notes, key: object, times: int = 1) -> list[str]:
    """Ticks of one stage; what was done since."""
    notes.did.clear()
    for _ in range(times):
        with runner.tick():
            runner.run("lm", key, lambda: notes.did.append("capture" if notes.is_capturing else "run"))
    return notes.did[:]


def test_a_stage_runs_once_is_captured_once_and_replayed_from_then_on(notes: Notes) -> None:
    runner = StageRunner(CUDA)
    assert run(runner, notes, (1, 64), 4) == ["run", "capture", "replay", "replay", "replay"]
    assert run(runner, notes, (2, 64), 2) == ["run", "capture", "replay"]
    assert run(runner, notes, (1, 64)) == ["replay"]
    assert notes.pools[0] is notes.pools[1]


def test_what_is_forgotten_is_captured_anew_in_a_pool_of_its_own(notes: Notes) -> None:
    runner = StageRunner(CUDA)
    run(runner, notes, (1, 64), 2)
    runner.forget()
    assert run(runner, notes, (1, 64), 2) == ["run", "capture", "replay"]
    assert notes.pools[0] is not notes.pools[1]


def test_a_stage_that_fails_is_tried_again(notes: Notes) -> None:
    runner = StageRunner(CUDA)

    def fail() -> None:
        raise RuntimeError("no memory")

    with runner.tick(), pytest.raises(RuntimeError, match="no memory"):
        runner.run("lm", 1, fail)
    assert run(runner, notes, 1, 3) == ["run", "capture", "replay", "replay"]


def test_a_capture_that_fails_leaves_the_stream_as_it_was(notes: Notes) -> None:
    runner, before, runs = StageRunner(CUDA), notes.stream, []

    def fail_captured() -> None:
        runs.append(notes.is_capturing)
        if notes.is_capturing:
            raise RuntimeError("not allowed in a capture")

    with runner.tick():
        runner.run("lm", 1, fail_captured)
        inside = notes.stream
        with pytest.raises(RuntimeError, match="not allowed in a capture"):
            runner.run("lm", 1, fail_captured)
        assert notes.stream is inside
    assert runs == [False, True]
    assert notes.stream is before


def test_each_model_has_a_stream_behind_what_came_before_and_before_what_comes_after(notes: Notes) -> None:
    outside, used = notes.stream, []

    def midway(runner: StageRunner) -> None:
        with runner.tick():
            used.append(notes.stream)
            raise RuntimeError("midway")

    for runner in (StageRunner(CUDA), StageRunner(CUDA)):
        with pytest.raises(RuntimeError, match="midway"):
            midway(runner)
        assert notes.stream is outside
    assert len({id(stream) for stream in (*used, outside)}) == 3
    assert [stream.behind for stream in used] == [[outside], [outside]]
    assert outside.behind == used


def test_a_tick_waits_for_its_stream_and_for_no_other(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(*_: object) -> None:
        raise AssertionError("a device that another thread captures on must not be waited for")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    runner = StageRunner(CUDA)
    run(runner, notes, (1, 64))
    assert runner.finish() == {"lm": 1.5}
    assert notes.did[-1] == "wait"


def test_convolutions_keep_their_whole_mantissa(notes: Notes) -> None:
    StageRunner(torch.device("cpu"))
    assert CUDNN.conv.fp32_precision == "tf32"
    StageRunner(CUDA)
    assert CUDNN.conv.fp32_precision == "ieee"


def test_on_a_cpu_every_stage_runs_and_is_timed() -> None:
    runner, done = StageRunner(torch.device("cpu")), list[str]()
    with runner.tick():
        for name in ("encode", "lm"):
            runner.run(name, 1, partial(done.append, name))
    assert done == ["encode", "lm"]
    stage_ms = runner.finish()
    assert list(stage_ms) == done
    assert min(stage_ms.values()) >= 0

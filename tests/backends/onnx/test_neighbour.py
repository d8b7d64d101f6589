"""The concurrent load during a measurement at the start."""

from __future__ import annotations

import threading

import pytest

from antiphon.backends.onnx.autotune import load

NAME = "antiphon-load"
CORES = "antiphon.backends.onnx.autotune.usable_cores"


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(("threads", "is_there"), [(1, False), (3, False), (4, True), (8, True)])
def test_a_neighbour_works_where_threads_leave_no_core(
    monkeypatch: pytest.MonkeyPatch, threads: int, is_there: bool
) -> None:
    monkeypatch.setattr(CORES, lambda: 4)
    bursts = threading.Semaphore(0)
    monkeypatch.setattr("zlib.crc32", lambda data: bursts.release())
    with load(threads) as found:
        assert found is is_there
        assert (NAME in names()) is is_there
        if is_there:
            assert all(bursts.acquire(timeout=60) for _ in range(3))
    assert NAME not in names()


def test_one_thread_on_one_core_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CORES, lambda: 1)
    with load(1) as found:
        assert not found


def test_a_measurement_that_fails_leaves_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CORES, lambda: 2)
    with pytest.raises(RuntimeError, match="out of memory"), load(2):
        raise RuntimeError("out of memory")
    assert NAME not in names()

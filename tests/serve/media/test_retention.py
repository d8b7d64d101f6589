"""Retention of recordings: the oldest are removed, by age and size, a bounded number at a time."""

from __future__ import annotations

import calendar
import threading
import time
from pathlib import Path

import pytest

from antiphon.serve.media import recording
from antiphon.serve.media.recording import CallRecorder
from antiphon.serve.media.retention import DAY_S, MAX_REMOVED, RecordingLimits, sweep
from tests.support.wav import read_wav

NOW_S = float(calendar.timegm((2030, 6, 15, 12, 0, 0)))


def keep(folder: Path, days_ago: float, *, session: str = "ab", size_bytes: int = 100) -> str:
    """A recording of so many days ago."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(NOW_S - days_ago * DAY_S))
    name = f"{stamp}-{session}-heard.wav"
    (folder / name).write_bytes(bytes(size_bytes))
    return name


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_older_than_it_may_be_goes(tmp_path: Path) -> None:
    keep(tmp_path, 31)
    young = keep(tmp_path, 29)
    (tmp_path / "notes-of-2001.wav").touch()
    assert sweep(tmp_path, RecordingLimits(60.0, 10**9, max_days=30.0), NOW_S) == 1
    assert names(tmp_path) == {young, "notes-of-2001.wav"}


def test_without_an_age_they_stay_until_room_is_needed(tmp_path: Path) -> None:
    old = [keep(tmp_path, days) for days in (400, 300, 200)]
    assert sweep(tmp_path, RecordingLimits(60.0, 300), NOW_S) == 0
    assert sweep(tmp_path, RecordingLimits(60.0, 250), NOW_S) == 1
    assert names(tmp_path) == set(old[1:])


def test_what_is_still_written_stays(tmp_path: Path) -> None:
    writing, done = keep(tmp_path, 40), keep(tmp_path, 35)
    assert sweep(tmp_path, RecordingLimits(60.0, 10**9, max_days=30.0), NOW_S, spared={writing}) == 1
    assert names(tmp_path) == {writing}
    assert done not in names(tmp_path)


def test_a_sweep_removes_a_bounded_number_and_the_next_goes_on(tmp_path: Path) -> None:
    for number in range(MAX_REMOVED + 10):
        keep(tmp_path, 40, session=f"{number:04x}")
    limits = RecordingLimits(60.0, 10**9, max_days=30.0)
    assert [sweep(tmp_path, limits, NOW_S) for _ in range(3)] == [MAX_REMOVED, 10, 0]
    assert names(tmp_path) == set()


def test_one_that_cannot_be_removed_keeps_no_other(tmp_path: Path) -> None:
    stuck, old, young = keep(tmp_path, 50), keep(tmp_path, 40), keep(tmp_path, 10)
    (tmp_path / stuck).unlink()
    (tmp_path / stuck).mkdir()
    with pytest.raises(OSError, match=stuck):
        sweep(tmp_path, RecordingLimits(60.0, 10**9, max_days=30.0), NOW_S)
    assert old not in names(tmp_path)
    assert names(tmp_path) == {stuck, young}


def test_a_sweep_that_fails_after_a_recording_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = CallRecorder(tmp_path, RecordingLimits(60.0, 10**9), clock=lambda: NOW_S)
    file = tmp_path / "a-heard.wav"
    recorder.put(file.name, bytes(480))
    while not (file.exists() and file.stat().st_size == 44 + 480):
        time.sleep(0.001)

    def fail(*_: object, **__: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(recording, "sweep", fail)
    recorder.put(file.name, None)
    recorder.close()
    assert recorder.failed_files == 0
    assert read_wav(file)[0].size == 240


def test_an_idle_server_removes_them_on_the_recorders_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "SWEEP_S", 0.01)
    swept, threads = threading.Event(), set()

    def watched(folder: Path, limits: RecordingLimits, now_s: float, **spared: object) -> int:
        threads.add(threading.current_thread().name)
        found = sweep(folder, limits, now_s)
        if found:
            swept.set()
        return found

    monkeypatch.setattr(recording, "sweep", watched)
    recorder = CallRecorder(tmp_path, RecordingLimits(60.0, 10**9, max_days=30.0), clock=lambda: NOW_S)
    keep(tmp_path, 31)
    assert swept.wait(120.0)
    recorder.close()
    assert names(tmp_path) == set()
    assert threads == {"antiphon-recorder"}

"""Usage records are kept by key and day, over processes and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import ConfigError
from antiphon.serve.access.line_writer import append
from antiphon.serve.access.usage import UsageLog, UsageRecord
from antiphon.supervisor.messages import Use
from antiphon.supervisor.shared import DaySeconds
from tests.serve.harness import PATIENCE_S

NOON = 1_000_000_800.0  # 2001-09-09T02:00:00Z


class Day:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = NOON

    def __call__(self) -> float:
        return self.now_s


def record(log: UsageLog, key: str = "alice", seconds: float = 10.0) -> UsageRecord:
    return UsageRecord(log.stamp(), "s-1", key, "tiny", seconds, seconds - 1.0, 7)


async def used(log: UsageLog, key: str = "alice") -> float:
    """What a key has used, after a look at the file."""
    await log.refresh()
    return log.seconds_today(key)


def test_a_record_is_a_line_of_json(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / "usage", clock=Day())
    log.write(record(log))
    log.close()
    assert json.loads((tmp_path / "usage").read_text()) == {
        "ended": "2001-09-09T02:00:00Z",
        "session": "s-1",
        "key": "alice",
        "model": "tiny",
        "seconds_in": 10.0,
        "seconds_out": 9.0,
        "words": 7,
        "tokens_in": 0,
        "tokens_out": 0,
    }


@pytest.mark.parametrize("has_file", [False, True])
async def test_seconds_are_counted_by_key_and_day(tmp_path: Path, has_file: bool) -> None:
    day = Day()
    log = UsageLog(tmp_path / "usage" if has_file else None, clock=day)
    log.write(record(log))
    log.write(record(log, seconds=2.5))
    log.write(record(log, key="bob"))
    assert (log.seconds_today("alice"), log.seconds_today("bob"), log.seconds_today("eve")) == (12.5, 10, 0)
    assert (await used(log), await used(log, "bob"), await used(log, "eve")) == (12.5, 10, 0)
    assert log.seconds_left() == 22 * 3600
    day.now_s += log.seconds_left()
    assert await used(log) == 0
    log.write(record(log))
    assert log.seconds_today("alice") == await used(log) == 10


async def test_processes_share_a_file_and_a_restart_reads_it(tmp_path: Path) -> None:
    day, path = Day(), tmp_path / "usage"
    one, other = UsageLog(path, clock=day), UsageLog(path, clock=day)
    one.write(record(one))
    other.write(record(other))
    other.close()
    assert await used(one) == 20
    assert await used(other) == 20
    assert UsageLog(path, clock=day).seconds_today("alice") == 20


async def test_a_clock_that_starts_in_the_past_and_steps_counts_the_seconds_of_the_day_once(
    tmp_path: Path,
) -> None:
    day, path = Day(), tmp_path / "usage"
    before = UsageLog(path, clock=day)
    before.write(record(before))
    before.close()
    other_day = Day()
    other_day.now_s = 0.0
    log = UsageLog(path, clock=other_day)
    log.write(record(log, seconds=3.0))
    assert await used(log) == 3
    for _ in range(2):
        other_day.now_s = NOON
        assert await used(log) == await used(log) == 10
        other_day.now_s = 0.0
        assert await used(log) == await used(log) == 3
    looking = asyncio.create_task(log.refresh())
    await asyncio.sleep(0)  # a look is under way
    before = UsageLog(path, clock=day)
    before.write(record(before))
    before.close()
    other_day.now_s = NOON
    await looking
    assert await used(log) == await used(log) == 20


async def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    day, path = Day(), tmp_path / "usage"
    log = UsageLog(path, clock=day)
    log.write(record(log))
    log.close()
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    assert await used(log) == 10
    path.write_bytes(line + line)
    assert await used(log) == 20


async def test_what_a_disk_fails_to_give_is_read_again_with_all_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, path = Day(), tmp_path / "usage"
    log, other, loads = UsageLog(path, clock=day), UsageLog(path, clock=day), json.loads
    for _ in range(2):
        other.write(record(other))
    other.close()
    lines = 0

    def failing(line: bytes) -> Any:
        nonlocal lines
        lines += 1
        if lines == 2:
            raise OSError(5, "Input/output error")
        return loads(line)

    monkeypatch.setattr(json, "loads", failing)
    assert await used(log) == 0
    assert await used(log) == 20


async def test_what_is_no_record_is_passed_over_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage"
    path.write_text('nonsense\n{"ended": 1}\n')
    log = UsageLog(path, clock=Day())
    log.write(record(log))
    log.close()
    wrongs: list[dict[str, Any]] = [{"ended": 1}, {"seconds_in": "ten"}, {"seconds_out": None}, {"key": []}]
    with path.open("a") as file:
        for wrong in wrongs:
            file.write(json.dumps(asdict(record(log)) | wrong) + "\n")
    log.write(record(log))
    assert await used(log) == 20
    assert caplog.messages.count("a line of the usage file is invalid") == 6


async def test_a_record_that_was_cut_short_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, write = tmp_path / "usage", os.write
    log = UsageLog(path, clock=Day())
    log.write(record(log))
    log.close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:20]))
        log.write(record(log))  # a disk that is nearly full
        log.close()
    assert "usage not recorded" in caplog.messages
    log.write(record(log))
    assert await used(log) == 30
    assert UsageLog(path, clock=Day()).seconds_today("alice") == 20


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("step_s", [86_400, -86_400])
async def test_a_clock_that_steps_a_day_and_back_gives_nothing_away(
    tmp_path: Path, has_file: bool, step_s: int
) -> None:
    day, seconds = Day(), DaySeconds()
    log = UsageLog(tmp_path / "usage" if has_file else None, clock=day)
    log.write(record(log))
    assert await used(log) == 10
    for now_s, use in ((NOON + step_s, 0.0), (NOON, 10.0)):
        day.now_s = now_s
        assert await used(log) == use
        assert log.seconds_here.get("alice", 0.0) == (0.0 if has_file else use)
        total = seconds.report(1, Use(log.day, (("alice", use),))).seconds
        assert total == (("alice", use),)
    day.now_s = NOON + step_s
    log.write(record(log, seconds=3.0))
    assert await used(log) == 3.0
    day.now_s = NOON
    assert await used(log) == 10.0


def test_only_the_group_of_the_server_reads_the_usage_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        UsageLog(tmp_path / "usage", clock=Day())
    finally:
        os.umask(before)
    assert (tmp_path / "usage").stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^usage cannot be written to .*/usage: No such file or directory$"
    ):
        UsageLog(tmp_path / "no" / "usage")


async def test_a_file_that_is_lost_later_keeps_nobody_from_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = UsageLog(folder / "usage", clock=Day())
    (folder / "usage").unlink()
    folder.rmdir()
    log.write(record(log))
    assert await used(log) == 10
    assert "usage not recorded" in caplog.messages
    assert "usage not read" in caplog.messages


async def test_a_disk_that_hangs_holds_up_no_event_loop_and_keeps_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    continues_elsewhere, here = threading.Event(), threading.get_ident()

    def hang(path: Path, line: bytes) -> None:
        assert threading.get_ident() != here
        continues_elsewhere.wait(PATIENCE_S)
        append(path, line)

    monkeypatch.setattr("antiphon.serve.access.line_writer.append", hang)
    monkeypatch.setattr("antiphon.serve.access.usage.DISK_S", 0.01)
    path = tmp_path / "usage"
    log, other = UsageLog(path, clock=Day()), UsageLog(path, clock=Day())
    for _ in range(3):
        log.write(record(log))
    assert await used(log) == 30, "a key has no more seconds while a disk hangs"
    assert not path.read_bytes()
    continues_elsewhere.set()
    monkeypatch.setattr("antiphon.serve.access.usage.DISK_S", PATIENCE_S)
    other.write(record(other))
    other.close()
    assert await used(log) in (30, 40)  # of a look that had begun before
    assert await used(log) == 40
    assert len(path.read_bytes().splitlines()) == 4


async def test_the_file_is_read_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, here = UsageLog(tmp_path / "usage", clock=Day()), threading.get_ident()
    threads: set[int] = set()
    read = Path.open

    def noted(path: Path, *arguments: Any) -> Any:
        threads.add(threading.get_ident())
        return read(path, *arguments)

    monkeypatch.setattr(Path, "open", noted)
    log.write(record(log))
    assert await used(log) == 10
    assert threads
    assert here not in threads


def test_records_beyond_those_that_may_wait_are_counted_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    continues_elsewhere = threading.Event()
    monkeypatch.setattr(
        "antiphon.serve.access.line_writer.append", lambda *_: continues_elsewhere.wait(PATIENCE_S)
    )
    monkeypatch.setattr("antiphon.serve.access.line_writer.MAX_LINES", 2)
    monkeypatch.setattr("antiphon.serve.access.usage.DISK_S", 0.0)
    log = UsageLog(tmp_path / "usage", clock=Day())
    for _ in range(5):
        log.write(record(log))
    assert log.seconds_today("alice") == 50
    continues_elsewhere.set()
    log.close()
    lost = caplog.messages.count("usage not recorded")
    assert 2 <= lost <= 3  # of five, two wait and one may be at the disk
    assert log.seconds_today("alice") == 50


def test_what_waits_for_a_disk_at_the_end_is_written_or_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    continues_elsewhere = threading.Event()

    def hang(path: Path, line: bytes) -> None:
        continues_elsewhere.wait(PATIENCE_S)
        append(path, line)

    monkeypatch.setattr("antiphon.serve.access.line_writer.append", hang)
    monkeypatch.setattr("antiphon.serve.access.usage.DISK_S", 0.0)
    path = tmp_path / "usage"
    log = UsageLog(path, clock=Day())
    for _ in range(3):
        log.write(record(log))
    monkeypatch.setattr("antiphon.serve.access.usage.CLOSE_S", 0.0)
    log.close()
    assert caplog.messages.count("usage not recorded") == 3
    monkeypatch.setattr("antiphon.serve.access.usage.CLOSE_S", PATIENCE_S)
    threading.Timer(0.05, continues_elsewhere.set).start()
    log.close()
    assert len(path.read_bytes().splitlines()) == 3
    assert log.seconds_today("alice") == 30

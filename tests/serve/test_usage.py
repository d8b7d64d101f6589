"""What calls used is kept, counted by key and day, over processes and restarts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.config import Limits, ServerConfig
from antiphon.errors import ConfigError, KeyRevokedError, UsageLimitError
from antiphon.serve.access.callers import Access, Caller
from antiphon.serve.access.keys import ApiKey, digest_of, format_key
from antiphon.serve.access.usage import UsageLog, UsageRecord

NOON = 1_000_000_800.0  # 2001-09-09T02:00:00Z


class Day:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = NOON

    def __call__(self) -> float:
        return self.now_s


def record(log: UsageLog, key: str = "alice", seconds: float = 10.0) -> UsageRecord:
    return UsageRecord(log.stamp(), "s-1", key, "tiny", seconds, seconds - 1.0, 7)


def test_a_record_is_a_line_of_json(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / "usage", clock=Day())
    log.write(record(log))
    assert json.loads((tmp_path / "usage").read_text()) == {
        "ended": "2001-09-09T02:00:00Z",
        "session": "s-1",
        "key": "alice",
        "model": "tiny",
        "seconds_in": 10.0,
        "seconds_out": 9.0,
        "words": 7,
    }


@pytest.mark.parametrize("has_file", [False, True])
def test_seconds_are_counted_by_key_and_day(tmp_path: Path, has_file: bool) -> None:
    day = Day()
    log = UsageLog(tmp_path / "usage" if has_file else None, clock=day)
    log.write(record(log))
    log.write(record(log, seconds=2.5))
    log.write(record(log, key="bob"))
    assert (log.seconds_today("alice"), log.seconds_today("bob"), log.seconds_today("eve")) == (12.5, 10, 0)
    assert log.seconds_left() == 22 * 3600
    day.now_s += log.seconds_left()
    assert log.seconds_today("alice") == 0
    log.write(record(log))
    assert log.seconds_today("alice") == 10


def test_processes_share_a_file_and_a_restart_reads_it(tmp_path: Path) -> None:
    day, path = Day(), tmp_path / "usage"
    one, other = UsageLog(path, clock=day), UsageLog(path, clock=day)
    one.write(record(one))
    other.write(record(other))
    assert one.seconds_today("alice") == other.seconds_today("alice") == 20
    assert UsageLog(path, clock=day).seconds_today("alice") == 20


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    day, path = Day(), tmp_path / "usage"
    log = UsageLog(path, clock=day)
    log.write(record(log))
    line = path.read_bytes()
    path.write_bytes(line + line[:20])
    assert log.seconds_today("alice") == 10
    path.write_bytes(line + line)
    assert log.seconds_today("alice") == 20


def test_what_is_no_record_is_passed_over_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "usage"
    path.write_text('nonsense\n{"ended": 1}\n')
    log = UsageLog(path, clock=Day())
    log.write(record(log))
    assert log.seconds_today("alice") == 10
    assert caplog.messages.count("a line of the usage file is no record") == 2


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^usage cannot be kept in .*/usage: No such file or directory$"):
        UsageLog(tmp_path / "no" / "usage")


def test_a_file_that_is_lost_later_keeps_nobody_from_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    log = UsageLog(folder / "usage", clock=Day())
    (folder / "usage").unlink()
    folder.rmdir()
    log.write(record(log))
    assert log.seconds_today("alice") == 10
    assert "usage not kept" in caplog.messages
    assert "usage not read" in caplog.messages


ALICE = ApiKey("alice", digest_of("key of alice"), seconds=30)
BOB = ApiKey("bob", digest_of("key of bob"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{format_key(ALICE)}\n{format_key(BOB)}\n")
    return path


def test_a_key_may_use_its_seconds_and_no_more(keys: Path) -> None:
    access = Access(ServerConfig(api_keys=str(keys), limits=Limits(max_seconds_per_key=100)))
    alice, bob = Caller(ALICE, "1.1.1.1"), Caller(BOB, "1.1.1.1")
    for caller in (alice, bob):
        access.check(caller)
        access.check(caller, running_s=29.9)
    with pytest.raises(UsageLimitError, match=r"^the key 'alice' has used 30 of 30 s today \(UTC\)$"):
        access.check(alice, running_s=30.0)
    access.usage.write(record(access.usage, key="bob", seconds=90))
    access.check(bob)
    with pytest.raises(UsageLimitError, match=r"'bob' has used 100 of 100 s") as caught:
        access.check(bob, running_s=10.0)
    assert 0 < caught.value.retry_after_s <= 86_400


def test_a_key_taken_out_of_the_file_is_revoked(keys: Path) -> None:
    access = Access(ServerConfig(api_keys=str(keys)))
    keys.write_text(f"# alice has left\n{format_key(BOB)}\n")
    access.check(Caller(BOB, "1.1.1.1"))
    with pytest.raises(KeyRevokedError, match=r"^the key 'alice' is no longer valid$"):
        access.check(Caller(ALICE, "1.1.1.1"))


def test_where_no_keys_are_asked_for_nothing_is_limited() -> None:
    Access(ServerConfig(limits=Limits(max_seconds_per_key=1))).check(Caller(None, "1.1.1.1"), running_s=9.0)

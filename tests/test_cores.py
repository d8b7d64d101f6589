"""The cores of this process: those it may run on, and the quotas of control groups around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from antiphon.cores import core_time, usable_cores

V1 = "12:pids:/job\n4:cpu,cpuacct:/docker/ab12\n0::/\n"
SLICE = "0::/system.slice/antiphon.service\n"


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of the machine's 64 cores are in the affinity."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)


def cores_with(folder: Path, groups: str, files: Mapping[str, str]) -> int:
    """What is found where control groups have these files."""
    (folder / "own").write_text(groups)
    for name, text in files.items():
        file = folder / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return usable_cores(folder / "cgroup", folder / "own")


def test_without_control_groups_the_affinity_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 8
    monkeypatch.delattr("os.sched_getaffinity")
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 64
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000\n", 8),
        ("250000 100000\n", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
        ("2 0", 8),
    ],
)
def test_a_quota_is_as_many_cores_as_it_has_whole_ones(tmp_path: Path, quota: str, cores: int) -> None:
    assert cores_with(tmp_path, "0::/\n", {"cpu.max": quota}) == cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("250000 100000", 2.5), ("50000 100000", 0.5), ("900000 100000", 8)],
)
def test_core_time_has_the_parts_of_cores(tmp_path: Path, quota: str, cores: float) -> None:
    cores_with(tmp_path, "0::/\n", {"cpu.max": quota})
    period_s = 0.1 if cores < 8 else 0.0
    assert core_time(tmp_path / "cgroup", tmp_path / "own") == (cores, period_s)


@pytest.mark.parametrize(
    ("quota_us", "period_us", "cores"), [("200000", "100000", 2), ("-1", "100000", 8), ("90000", "100000", 1)]
)
@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu", "cpu,cpuacct/docker/ab12", "cpu/docker"])
def test_a_quota_of_version_1_is_found(
    tmp_path: Path, folder: str, quota_us: str, period_us: str, cores: int
) -> None:
    files = {f"{folder}/cpu.cfs_quota_us": quota_us, f"{folder}/cpu.cfs_period_us": period_us}
    assert cores_with(tmp_path, V1, files) == cores


def test_the_smallest_quota_of_the_groups_around_counts(tmp_path: Path) -> None:
    own, around = "system.slice/antiphon.service/cpu.max", "system.slice/cpu.max"
    assert cores_with(tmp_path, SLICE, {own: "max 100000", around: "500000 100000"}) == 5
    assert cores_with(tmp_path, SLICE, {own: "300000 100000"}) == 3
    assert cores_with(tmp_path, SLICE, {"other.slice/cpu.max": "100000 100000"}) == 3

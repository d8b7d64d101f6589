"""The statistics of a call's delays, and the whole benchmark once for seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench import web_delay
from lab.bench.harness import BenchError, Values
from tests.support.calm import CALM_OPTIONS


def lines(delays_ms: list[float], *, gaps: int = 0) -> list[Values]:
    """The page's lines, once a second."""
    said = [
        {"at_s": float(second), "state": "live", "mouthToEarMs": delay, "gaps": gaps, "late": 0, "lost": 0}
        for second, delay in enumerate(delays_ms)
    ]
    return [{"first_sound_ms": 900}, *said]


def test_a_steady_delay_does_not_grow_and_a_rising_one_does() -> None:
    steady = web_delay.summarise(lines([180.0] * 600, gaps=2), warm_up_s=15)
    assert (steady["growth_ms"], steady["holds"], steady["gaps"], steady["first_sound_ms"]) == (
        0,
        True,
        2,
        900,
    )
    rising = web_delay.summarise(lines([180 + second / 10 for second in range(600)]), warm_up_s=15)
    assert rising["growth_ms"] == pytest.approx(52.6, abs=0.5)
    assert not rising["holds"]


def test_a_first_sound_that_is_late_is_told() -> None:
    def summary(first_sound_ms: float) -> Values:
        _, *rest = lines([180.0] * 60)
        return web_delay.summarise([{"first_sound_ms": first_sound_ms}, *rest], warm_up_s=15)

    assert summary(5000)["is_prompt"]
    assert not summary(5001)["is_prompt"]


def test_the_beginning_does_not_count() -> None:
    found = web_delay.summarise(lines([900.0] * 15 + [180.0] * 100), warm_up_s=15)
    assert (found["max_ms"], found["first_ms"]) == (180, 180)


def test_a_call_that_was_interrupted_or_too_short_says_nothing() -> None:
    with pytest.raises(BenchError, match=r"2 numbers after 5 s, at least 3 are needed"):
        web_delay.summarise(lines([180.0] * 7), warm_up_s=5)
    lost = [*lines([180.0] * 30), {"at_s": 30.0, "state": "lost", "mouthToEarMs": 180.0}]
    with pytest.raises(BenchError, match="the call was interrupted: lost"):
        web_delay.summarise(lost, warm_up_s=5)


def look(at_s: float, heap_bytes: int, nodes: int = 700) -> Values:
    return {"at_s": at_s, "heap_bytes": heap_bytes, "nodes": nodes, "listeners": 80}


def test_a_heap_that_stays_is_flat_and_one_that_grows_is_not() -> None:
    first = [look(30, 9_000_000), {"at_s": 31.0}, look(60, 3_000_000)]
    flat = web_delay.summarise_heap([*first, look(300, 3_800_000), look(600, 3_500_000, 1500)])
    assert flat["is_flat"]
    assert (flat["first"]["heap_bytes"], flat["last"]["nodes"], flat["max_bytes"]) == (
        3_000_000,
        1500,
        9_000_000,
    )
    assert not web_delay.summarise_heap([*first, look(600, 3_500_001)])["is_flat"]
    with pytest.raises(BenchError, match="no size of its heap"):
        web_delay.summarise_heap([{"at_s": 1.0}])


def test_it_runs(tmp_path: Path) -> None:
    options = ["--backend", "null", *CALM_OPTIONS]
    assert web_delay.main(["--quick", "--out", str(tmp_path), "--", *options]) == 0
    values = json.loads((tmp_path / "web-delay.json").read_text())
    assert values["delay"]["first_sound_ms"] > 0
    assert values["delay"]["median_ms"] > 80
    assert len([line for line in values["samples"] if "at_s" in line]) == 6
    assert values["heap"]["last"]["heap_bytes"] > 500_000
    report = " ".join((tmp_path / "web-delay.md").read_text().split())  # its prose is wrapped
    assert "Mouth to ear, medians" in report
    assert "The page's heap after a collection" in report
    assert (tmp_path / "web-delay.png").stat().st_size > 1000

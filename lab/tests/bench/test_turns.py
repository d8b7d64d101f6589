"""Calls timed in alternation, and the text about their times."""

from __future__ import annotations

from lab.bench import turns


def test_calls_take_turns_and_the_first_do_not_count() -> None:
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    found = turns.take_turns(calls, 3)
    assert order == list("ab" * (3 + turns.UNTIMED_TURNS))
    assert {found[name]["runs"] for name in "ab"} == {3}


def test_a_summary_has_its_spread() -> None:
    found = turns.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found["median_ms"], found["best_ms"], found["runs"]) == (3.0, 1.0, 5)
    assert found["quartiles_ms"][0] < 3 < found["quartiles_ms"][1]
    assert turns.summary([7.0])["quartiles_ms"] == [7.0, 7.0]

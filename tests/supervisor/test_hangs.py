"""Which engines count as hung, from what they answer over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from antiphon.supervisor.children import PING_PERIOD_S, RESPONSIVE_S, Child
from antiphon.supervisor.hangs import ENGINE_SILENT_S, STUCK_S, Hangs

STUMBLE_S, STUMBLE_PERIOD_S = 1.0, 10.0
LONG_S = 600.0


@dataclass(eq=False)
class Answers:
    """What the supervisor knows of an engine."""

    silent_s: float = 0.0
    stuck_s: float = 0.0

    @property
    def is_responsive(self) -> bool:
        return self.silent_s <= RESPONSIVE_S

    def beat(self, *, is_silent: bool = False, is_stuck: bool = False) -> None:
        self.silent_s = self.silent_s + PING_PERIOD_S if is_silent else 0.0
        if not is_silent:
            self.stuck_s = self.stuck_s + PING_PERIOD_S if is_stuck else 0.0


def find(hangs: Hangs, *engines: Answers) -> list[Any]:
    return list(hangs.find(cast("list[Child]", engines), PING_PERIOD_S))


def beats(seconds: float) -> Iterable[float]:
    return (number * PING_PERIOD_S for number in range(1, 1 + int(seconds / PING_PERIOD_S)))


@given(st.booleans(), st.sampled_from(["silent", "stuck"]))
def test_an_engine_that_stumbles_does_not_keep_one_that_hangs(is_first: bool, how: str) -> None:
    hangs, hung, stumbling = Hangs(), Answers(), Answers()
    engines = (hung, stumbling) if is_first else (stumbling, hung)
    limit_s = (ENGINE_SILENT_S if how == "silent" else STUCK_S) + PING_PERIOD_S
    share = 1 - (STUMBLE_S + RESPONSIVE_S) / STUMBLE_PERIOD_S
    for now_s in beats(LONG_S):
        hung.beat(is_silent=how == "silent", is_stuck=how == "stuck")
        stumbling.beat(is_silent=now_s % STUMBLE_PERIOD_S >= STUMBLE_PERIOD_S - STUMBLE_S)
        if found := find(hangs, *engines):
            assert found == [hung]
            assert limit_s - PING_PERIOD_S < now_s <= limit_s / share
            break
    else:
        raise AssertionError("it was never found")
    assert find(hangs, *engines) == [], "each is found once"


@given(
    st.floats(1.0, LONG_S),
    st.floats(0.0, ENGINE_SILENT_S - RESPONSIVE_S - 3 * PING_PERIOD_S),
    st.floats(0.0, 0.5),
    st.sampled_from(["silent", "stuck"]),
)
def test_a_stall_of_the_whole_machine_finds_none(stall_s: float, later: float, skew: float, how: str) -> None:
    """The second engine stops ``skew`` of the time after the first that it resumes ``later`` than it."""
    hangs, first, second = Hangs(), Answers(), Answers()
    scale = 1.0 if how == "silent" else STUCK_S / ENGINE_SILENT_S / 2
    later_s, skew_s = scale * later, scale * skew * later
    for now_s in beats(stall_s + later_s + 5.0):
        for engine, begin_s, end_s in ((first, 0.0, stall_s), (second, skew_s, stall_s + later_s)):
            is_stalled = begin_s < now_s <= end_s
            engine.beat(is_silent=how == "silent" and is_stalled, is_stuck=how == "stuck" and is_stalled)
        assert find(hangs, first, second) == []


@given(st.lists(st.sampled_from(["works", "silent", "stuck"]), max_size=400))
def test_the_last_engine_is_never_found(states: list[str]) -> None:
    hangs, engine, ended = Hangs(), Answers(), Answers()
    for _ in beats(2 * ENGINE_SILENT_S):
        ended.beat(is_silent=True)
        engine.beat()
        find(hangs, engine, ended)
    for state in states:
        engine.beat(is_silent=state == "silent", is_stuck=state == "stuck")
        ended.beat(is_silent=True)
        assert find(hangs, engine, ended) == []

"""The trial: its phases, counts and reports, and the assignment of calls."""

from __future__ import annotations

import pytest

from antiphon.canary import trial as trials
from antiphon.canary.share import caller_digest, point_of
from antiphon.canary.signals import SIGNALS, CallSignals, TrialArm
from antiphon.canary.trial import Phase, Trial, TrialRules

WELL = CallSignals(late=0.0, silence=0.2, repetition=0.1, hang_up=0.0, failure=0.0)


def tried(bad: CallSignals, *, calls: int = 60, callers: bool = False) -> Trial:
    """Calls by turns, those of the canary ``bad``."""
    trial = Trial(TrialRules())
    for number in range(calls):
        trial.add(TrialArm.STABLE, WELL, f"a{number}" if callers else "")
        trial.add(TrialArm.CANARY, bad, f"b{number}" if callers else "")
    return trial


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_signal_withdraws_by_its_name(signal: str) -> None:
    well = dict.fromkeys(SIGNALS, 0.0)
    trial = Trial(TrialRules())
    while trial.phase is Phase.RUNNING:
        trial.add(TrialArm.STABLE, CallSignals(**well))
        trial.add(TrialArm.CANARY, CallSignals(**{**well, signal: 1.0}))
        assert trial.calls[TrialArm.CANARY] < 20
    count = trial.calls[TrialArm.CANARY]
    assert trial.phase is Phase.WITHDRAWN
    assert trial.reason == (
        f"{signal}: 1.00 in {count} calls of the canary, 0.00 in {count} calls of the stable version"
    )


def test_a_well_canary_goes_on_and_its_state_is_plain() -> None:
    trial = tried(WELL)
    assert (trial.phase, trial.reason) == (Phase.RUNNING, "")
    report = trial.report()
    assert report["calls"] == {"stable": 60, "canary": 60}
    assert report["signals"]["silence"]["canary"] == 0.2
    assert report["signals"]["silence"]["comparisons"] == 60
    assert report["signals"]["disagreement"]["comparisons"] == 0  # no recogniser heard a call
    assert report["signals"]["late"]["needed"] == round(2 / (0.01 / len(SIGNALS)))


def test_a_phase_by_hand_stays_until_another_is_asked_for() -> None:
    trial = Trial(TrialRules())
    trial.ask(Phase.PROMOTED)
    for _ in range(60):
        assert not trial.add(TrialArm.CANARY, CallSignals(failure=1.0))
    assert (trial.phase, trial.reason) == (Phase.PROMOTED, "by hand")
    trial.ask(Phase.WITHDRAWN)
    assert (trial.phase, trial.reason) == (Phase.WITHDRAWN, "by hand")
    trial.ask(Phase.RUNNING)
    assert (trial.phase, trial.reason, trial.calls[TrialArm.CANARY]) == (Phase.RUNNING, "", 0)


def test_of_a_caller_the_first_call_counts() -> None:
    faulty = CallSignals(failure=1.0)
    assert tried(faulty, callers=True).phase is Phase.WITHDRAWN
    trial = Trial(TrialRules())
    for _ in range(60):
        trial.add(TrialArm.STABLE, WELL, "a")
        trial.add(TrialArm.CANARY, faulty, "b")
    assert trial.phase is Phase.RUNNING
    assert trial.evidence["failure"].comparisons == 1


def test_callers_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_CALLERS", 3)
    trial = Trial(TrialRules())
    for name in ("a", "b", "c", "d", "a"):  # the fourth is one too many, and all are forgotten
        trial.add(TrialArm.STABLE, WELL, name)
    assert trial.evidence["late"].means[TrialArm.STABLE].count == 5
    trial.add(TrialArm.STABLE, WELL, "d")
    assert trial.evidence["late"].means[TrialArm.STABLE].count == 5


def test_a_caller_has_one_point_and_all_callers_are_spread_evenly() -> None:
    points = [point_of(caller_digest("next", f"10.0.0.{number}")) for number in range(1000)]
    assert points == [point_of(caller_digest("next", f"10.0.0.{number}")) for number in range(1000)]
    assert all(0 <= point < 1 for point in points)
    assert 60 <= sum(point < 0.1 for point in points) <= 140
    assert points[0] != point_of(caller_digest("another", "10.0.0.0"))
    assert point_of("f" * 32) < 1, "a share of 1 has every caller"

"""The sequential test: its error rate, and the number of calls until it detects a difference."""

from __future__ import annotations

import random

from antiphon.canary.evidence import ROUND_COMPARISONS, STAKES, Evidence
from antiphon.canary.signals import TrialArm

ERROR = 0.01


def calls_until_worse(
    seed: int, stable: float, canary: float, *, most: int, share: float = 0.5
) -> int | None:
    """Calls of the canary until it is found worse, of two versions with these shares of bad calls."""
    chance, evidence = random.Random(seed), Evidence(ERROR, tolerance=0.05)
    while evidence.means[TrialArm.CANARY].count < most:
        arm = TrialArm.CANARY if chance.random() < share else TrialArm.STABLE
        evidence.add(arm, float(chance.random() < (canary if arm is TrialArm.CANARY else stable)))
        if evidence.is_worse:
            return evidence.means[TrialArm.CANARY].count
    return None


def test_equal_versions_are_told_apart_in_fewer_than_one_of_a_hundred() -> None:
    found = [calls_until_worse(seed, 0.3, 0.3, most=150) for seed in range(100)]
    assert sum(it is not None for it in found) <= 1


def test_a_difference_within_the_tolerance_is_none() -> None:
    found = [calls_until_worse(seed, 0.3, 0.34, most=150) for seed in range(100)]
    assert sum(it is not None for it in found) <= 1


def test_a_fault_of_every_call_is_found_in_some_twenty_calls() -> None:
    found = [calls_until_worse(seed, 0.05, 1.0, most=60) for seed in range(100)]
    assert all(found)
    assert sorted(it or 0 for it in found)[50] <= 25


def test_a_fault_that_comes_late_is_found_after_the_next_round_has_begun() -> None:
    evidence = Evidence(ERROR, tolerance=0.05)
    for _ in range(5 * ROUND_COMPARISONS - 20):
        evidence.add(TrialArm.STABLE, 0.0)
        evidence.add(TrialArm.CANARY, 0.0)
    assert evidence.capital < 0.2  # lost while there was nothing to find
    calls = 0
    while not evidence.is_worse:
        evidence.add(TrialArm.STABLE, 0.0)
        evidence.add(TrialArm.CANARY, 1.0)
        calls += 1
    assert calls <= 20 + 25


def test_the_parts_of_all_rounds_are_the_whole_error() -> None:
    evidence, parts = Evidence(ERROR, tolerance=0.05), []
    for number in range(40 * ROUND_COMPARISONS):
        if number % ROUND_COMPARISONS == 1:
            parts.append(1 / evidence.needed)
        evidence.add(TrialArm.STABLE, 0.5)
        evidence.add(TrialArm.CANARY, 0.5)
    assert len(parts) == 40
    assert 0.9 * ERROR < sum(parts) < ERROR


def test_one_difference_loses_no_more_than_its_stake() -> None:
    evidence = Evidence(ERROR, tolerance=0.05)
    evidence.add(TrialArm.STABLE, 1.0)
    evidence.add(TrialArm.CANARY, 0.0)
    assert abs(evidence.capital - (1 - sum(STAKES) / len(STAKES))) < 1e-9


def test_calls_of_one_version_are_averaged_until_the_other_has_one() -> None:
    evidence = Evidence(ERROR, tolerance=0.05)
    for value in (0.0, 0.5, 1.0):
        evidence.add(TrialArm.STABLE, value)
    assert evidence.comparisons == 0
    evidence.add(TrialArm.CANARY, 0.55)
    assert evidence.comparisons == 1
    assert abs(evidence.capital - 1.0) < 1e-9  # worse by exactly the tolerance: nothing won or lost

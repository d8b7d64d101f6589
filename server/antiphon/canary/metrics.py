"""Metrics of a trial for Prometheus, computed when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.canary.signals import TrialArm
from antiphon.canary.trial import Phase, Trial
from antiphon.metrics import read_family


class TrialMetrics(Collector):
    """Collects the metrics of one trial."""

    def __init__(self, trial: Trial) -> None:
        """Report on ``trial``."""
        self._trial = trial

    def collect(self) -> Iterable[Metric]:
        """The phase; for each signal the counts of both versions and the evidence."""
        trial = self._trial
        calls, phase = read_family("canary_calls"), read_family("canary_phase")
        fault, evidence = read_family("canary_fault"), read_family("canary_evidence")
        for arm, count in trial.calls.items():
            calls.add_metric((arm.value,), count)
        for each in Phase:
            phase.add_metric((each.value,), float(each is trial.phase))
        for name, found in trial.evidence.items():
            evidence.add_metric((name,), found.capital / found.needed)
            for arm in TrialArm:
                fault.add_metric((arm.value, name), found.means[arm].mean)
        yield from (calls, phase, fault, evidence)

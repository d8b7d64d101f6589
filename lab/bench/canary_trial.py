"""How many calls it takes to withdraw a faulty canary, and how often a good one is withdrawn.

    python -m lab.bench.canary_trial [--calls 200] [--write]

Real calls of ``tiny`` through a server with two versions, half of them to the canary. First a canary that is
the same model: its calls are drawn from again, in pairs of sequences, and withdrawals are counted. Then five
faults, planted in the canary one after the other: calls until it is withdrawn, once as they came, and drawn
again in other orders and with other shares. ``--write`` puts the tables into docs/benchmarks/canary.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon.canary.signals import SIGNALS, CallSignals, TrialArm
from antiphon.canary.trial import Phase, Trial, TrialRules
from lab.bench.canary_calls import FAULTS, KeptSignals, many_calls, on_trial
from lab.bench.harness import tell

PAIRS: Final = 1000
CANARY_CALLS: Final = 500
"""Of each pair of sequences: as many calls of the canary without a withdrawal."""

MOST_CALLS: Final = 5000
SHARES: Final = (0.5, 0.1)
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "canary.md"
BEGIN, END = "<!-- trial -->", "<!-- end of trial -->"

Signals = Sequence[CallSignals]


@dataclass(frozen=True, slots=True)
class TriedCanary:
    """The calls of one server, and what came of its trial."""

    fault: str
    calls: int
    seconds: float
    phase: Phase
    reason: str
    arms: dict[TrialArm, list[CallSignals]]


async def collect(fault: str, calls: int, *, until_over: bool) -> TriedCanary:
    """Real calls, half of them of a canary with a fault."""
    random.seed(11)
    book = KeptSignals.here()
    began_s = time.monotonic()
    async with on_trial(fault, 0.5, book) as server:
        done = await many_calls(server, book, calls, fault, until_over=until_over)
    assert book.shared is not None
    assert book.shared.trial is not None
    reason = book.shared.trial.trial.reason
    arms = {arm: [signals for each, signals in book.calls if each is arm] for arm in TrialArm}
    return TriedCanary(fault, done, time.monotonic() - began_s, book.phase, reason, arms)


def drawn(stable: Signals, canary: Signals, share: float, chance: random.Random, most: int) -> Trial:
    """A trial of calls drawn from those there were, until it is over or the canary has had ``most``."""
    trial = Trial(TrialRules(share=share))
    while trial.phase is Phase.RUNNING and trial.calls[TrialArm.CANARY] < most:
        arm = TrialArm.CANARY if chance.random() < share else TrialArm.STABLE
        trial.add(arm, chance.choice(canary if arm is TrialArm.CANARY else stable))
    return trial


def false_alarms(calls: Signals, pairs: int = PAIRS) -> int:
    """Of so many pairs of sequences from one pool of calls, those that end with a withdrawal."""
    chance = random.Random(1)
    trials = (drawn(calls, calls, 0.5, chance, CANARY_CALLS) for _ in range(pairs))
    return sum(trial.phase is Phase.WITHDRAWN for trial in trials)


def detection(found: TriedCanary, stable: Signals, share: float) -> list[int]:
    """The canary's calls until it is withdrawn, in 200 orders, in ascending order."""
    chance = random.Random(2)
    trials = [drawn(stable, found.arms[TrialArm.CANARY], share, chance, MOST_CALLS) for _ in range(200)]
    return sorted(
        trial.calls[TrialArm.CANARY] if trial.phase is Phase.WITHDRAWN else MOST_CALLS for trial in trials
    )


def means(calls: Signals) -> str:
    """The mean of each signal, and of how many calls."""
    parts = []
    for name in SIGNALS:
        values = [value for each in calls if (value := getattr(each, name)) is not None]
        parts.append(f"{name} {statistics.fmean(values):.3f} ({len(values)})" if values else f"{name} none")
    return ", ".join(parts)


def table(healthy: TriedCanary, alarms: int, faults: Sequence[TriedCanary]) -> list[str]:
    """Markdown."""
    pool = [*healthy.arms[TrialArm.STABLE], *healthy.arms[TrialArm.CANARY]]
    lines = [
        *_wrapped(
            f"Load {os.getloadavg()[0]:.1f}. The same model twice (`tiny`, half of the calls to each): "
            f"{len(pool)} real calls in {healthy.seconds:.0f} s, {_phase(healthy)}. {alarms} of {PAIRS} "
            f"pairs of sequences drawn from them ended with a withdrawal within {CANARY_CALLS} calls of the "
            f"canary ({100 * alarms / PAIRS:.1f} %)."
        ),
        *_wrapped(f"Means, and of how many calls: {means(pool)}."),
        "| planted | as they came: calls in all, of the canary | because of | drawn again, share 0.5: calls "
        "of the canary, p50, p99 | share 0.1: p50, p99 |",
        "|---|---|---|---|---|",
    ]
    for found in faults:
        cells = [
            f"{orders[len(orders) // 2]}, {orders[int(0.99 * len(orders))]}"
            for orders in (detection(found, pool, share) for share in SHARES)
        ]
        came = f"{found.calls}, {len(found.arms[TrialArm.CANARY])}"
        reason = found.reason if found.phase is Phase.WITHDRAWN else _phase(found)
        lines.append(f"| {found.fault} | {came} | {reason} | {' | '.join(cells)} |")
    return lines


def _phase(found: TriedCanary) -> str:
    return "withdrawn" if found.phase is Phase.WITHDRAWN else "not withdrawn"


def _wrapped(paragraph: str) -> list[str]:
    """In lines as long as those of the document, and an empty one."""
    return [*textwrap.wrap(paragraph, 100, break_on_hyphens=False), ""]


async def measure(calls: int, kinds: Sequence[str]) -> list[str]:
    """All of it."""
    healthy = await collect("", calls, until_over=False)
    pool = [*healthy.arms[TrialArm.STABLE], *healthy.arms[TrialArm.CANARY]]
    tell(f"healthy: {healthy.phase.value} {healthy.reason} {healthy.seconds:.0f} s; {means(pool)}")
    alarms = false_alarms(pool)
    tell(f"{alarms} of {PAIRS} pairs withdrawn")
    faults = []
    for fault in kinds:
        found = await collect(fault, calls, until_over=True)
        tell(f"{fault}: {found.calls} calls, {found.phase.value} {found.reason}; {found.seconds:.0f} s")
        tell(f"  {means(found.arms[TrialArm.CANARY])}")
        faults.append(found)
    return table(healthy, alarms, faults)


def main() -> None:
    """Measure, print, and write where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="real calls of each server, at most [200]")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="these faults alone")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks/canary.md")
    options = parser.parse_args()
    text = "\n".join(asyncio.run(measure(options.calls, options.fault or FAULTS)))
    print(text)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()

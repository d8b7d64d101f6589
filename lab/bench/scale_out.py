"""How many free rows an autoscaler should keep: refused and queued callers against idle rows.

    python -m lab.bench.scale_out [--quick] [--out FOLDER]

Simulated days of callers (`lab.bench.scale_day`) over 1 to 100 workers (`lab.bench.scale_simulation`),
for two kinds of rules and three times that a worker takes to start. Minutes of CPU; each run writes the
same page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon_client.plot import load_matplotlib
from lab.bench.harness import tell
from lab.bench.scale_day import DAY_S, CallDay
from lab.bench.scale_simulation import (
    DayOutcome,
    DaySimulation,
    ScaledFleet,
    ScaleRule,
    root_free,
    share_free,
)

RULES: dict[str, ScaleRule] = {
    "0 % free": share_free(0.0),
    "10 % free": share_free(0.1),
    "20 % free": share_free(0.2),
    "40 % free": share_free(0.4),
    "1 root": root_free(1.0),
    "2 roots": root_free(2.0),
    "3 roots": root_free(3.0),
}
STARTS_S = (6.0, 60.0, 300.0)
"""`tiny` in a container, measured; a model read from a disk; the longest that compose.yaml waits."""

DAYS = {12: 10, 120: 3, 1200: 1}
"""Calls at once at the day's peak, and how many days of them are simulated."""

HEAD = """# Free rows for an autoscaler

`python -m lab.bench.scale_out`: simulated days over 1 to 100 workers of {rows} rows. Calls last
{call:.0f} s on average (log-normal), come by a curve of two humps over a quiet night, and twice
as many for five minutes at 15:00. A caller waits {patience:.0f} s at most, {queue} callers a
worker. The autoscaler looks every {look:.0f} s, starts workers at once, and drains one worker
each {down:.0f} s when {settle:.0f} s wanted fewer. Idle rows are those paid for and not used,
from a worker's start to its end.

**The rule**: keep free rows of twice the square root of the callers. `antiphon:workers_wanted`
in `deploy/prometheus/rules/recorded.yml` is the number of workers by this rule. Callers vary by
the square root of their number, so a fixed share of free rows is too small for small fleets and
too large for large ones: at 1,200 calls and a start of 6 s, two roots turn away as few as a
fifth of all rows does, with 31 % of the rows idle in the place of 43 %.

**When a worker needs minutes to start**, callers who come while it starts need rows that are
free already: take three roots. Where the day's growth within a start is more than that (1,200
calls, 300 s), a fifth of all rows queues fewer, at 43 % idle.

A day begins with the fewest workers. What the largest one refuses by every rule (0.006 and 0.06
%) is its first minutes. There are never more than 100 workers that stay: at 1,200 calls, 40 % free
would be 125.

A worker in a container is ready 2 s after its start on a quiet machine, and the load balancer
knows it within 5 s ([the stack](stack.md)): {start:.0f} s has some room. 60 and 300 s are assumed, not
measured: a model of gigabytes from a disk, and the longest that `compose.yaml` waits for a worker.

![Refused and queued callers against idle rows](scale-out.png)

| peak calls | start | rule | refused | queued | waited p95 | idle rows | most workers |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class ScaleCell:
    """One row of the table."""

    peak: int
    start_s: float
    rule: str
    refused: float
    queued: float
    waited_p95_s: float
    idle: float
    most_workers: int


def simulate(peak: int, start_s: float, name: str, days: int) -> ScaleCell:
    """Some days with one rule, seeds 0 and up, the same days for every rule."""
    fleet = ScaledFleet(RULES[name], start_s)
    outcomes = [DaySimulation(fleet, CallDay(peak).callers(seed), DAY_S).run() for seed in range(days)]
    waited = sorted(wait for outcome in outcomes for wait in outcome.waited_s)
    return ScaleCell(
        peak,
        start_s,
        name,
        refused=_share(outcomes, [each.refused for each in outcomes]),
        queued=_share(outcomes, [each.queued for each in outcomes]),
        waited_p95_s=waited[int(0.95 * len(waited))] if waited else 0.0,
        idle=1 - sum(each.used_row_s for each in outcomes) / sum(each.paid_row_s for each in outcomes),
        most_workers=max(each.most_workers for each in outcomes),
    )


def _share(outcomes: Sequence[DayOutcome], counts: Sequence[int]) -> float:
    return sum(counts) / sum(each.arrived for each in outcomes)


def page(cells: Sequence[ScaleCell]) -> str:
    """The page as Markdown."""
    fleet = ScaledFleet(share_free(0.0), STARTS_S[0])
    head = HEAD.format(
        rows=fleet.rows,
        call=CallDay(1).mean_call_s,
        patience=fleet.patience_s,
        queue=fleet.queue,
        look=fleet.look_every_s,
        down=fleet.step_down_s,
        settle=fleet.settle_s,
        start=STARTS_S[0],
    )
    rows = [
        f"| {cell.peak} | {cell.start_s:.0f} s | {cell.rule} | {cell.refused:.3%} | {cell.queued:.3%} "
        f"| {cell.waited_p95_s:.0f} s | {cell.idle:.1%} | {cell.most_workers} |\n"
        for cell in cells
    ]
    return head + "".join(rows)


def draw(cells: Sequence[ScaleCell], file: Path) -> None:
    """A panel a peak: refused and queued callers over idle rows, a line a start and kind of rule."""
    peaks = sorted({cell.peak for cell in cells})
    figure = load_matplotlib().Figure(figsize=(4 * len(peaks), 4), layout="constrained")
    for axes, peak in zip(figure.subplots(1, len(peaks), squeeze=False)[0], peaks, strict=True):
        for start_s in sorted({cell.start_s for cell in cells}):
            for kind, mark in (("free", "o--"), ("root", "s-")):
                found = [
                    cell
                    for cell in cells
                    if (cell.peak, cell.start_s) == (peak, start_s) and kind in cell.rule
                ]
                axes.plot(
                    [100 * cell.idle for cell in found],
                    [100 * (cell.refused + cell.queued) for cell in found],
                    mark,
                    label=f"{'share' if kind == 'free' else 'roots'}, start {start_s:.0f} s",
                )
        axes.set(title=f"{peak} calls at the peak", xlabel="idle rows, %")
        axes.set_yscale("symlog", linthresh=0.01)
    figure.axes[0].set_ylabel("refused or queued callers, %")
    figure.axes[-1].legend(fontsize="small")
    figure.savefig(file, dpi=110)


def main(argv: Sequence[str]) -> int:
    """Simulate, and write page and figure."""
    parser = argparse.ArgumentParser(description="Refused and queued callers against idle rows.")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="a day of the smallest fleet")
    args = parser.parse_args(argv)
    days = {12: 1} if args.quick else DAYS
    cells = []
    for peak, number in days.items():
        for start_s in STARTS_S:
            cells += [simulate(peak, start_s, name, number) for name in RULES]
            tell(f"{peak} calls at the peak, start {start_s:.0f} s: done")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(cells, args.out / "scale-out.png")
    (args.out / "scale-out.md").write_text(page(cells))
    tell(f"==> {args.out / 'scale-out.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

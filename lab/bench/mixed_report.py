"""The report of a mixed load: frames by owner, what the load balancer adds, shares, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from antiphon_client.measures import Distribution
from antiphon_client.plot import load_matplotlib
from antiphon_client.record import Seconds, SessionOutcome, SessionRecord
from antiphon_client.report import Counts, latencies_ms, report_session
from lab.bench.harness import Values, machine_line

MIB = 2**20
KILLED_WITHIN_S = 3.0
"""A call on a killed worker has ended by then: its connection is cut at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is over; ``is_direct`` when it did not come through the load balancer."""

    model: str
    is_direct: bool
    begun_s: float
    ended_s: float
    record: SessionRecord


@dataclass(frozen=True, slots=True)
class Event:
    """Something done to the stack, and how many calls were there by the worker's own account."""

    what: str
    at_s: float
    where: str
    calls_there: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The stack at one moment: calls at each worker (None: away), resident bytes of each process.

    A process is called by its host, and one that followed another there by its place in line as well.
    """

    at_s: float
    used: dict[str, int | None]
    memory: dict[str, int]


def was_killed(call: Call, events: Sequence[Event]) -> bool:
    """Whether a call was cut off with the worker that was killed."""
    return call.record.outcome is SessionOutcome.FAILED and any(
        event.what == "kill" and 0 <= call.ended_s - event.at_s <= KILLED_WITHIN_S for event in events
    )


def transport_ms(call: Call) -> Seconds:
    """Of each frame, what is not the model's: its latency less its waiting and its step."""
    timeline = call.record.timeline
    found: Seconds = latencies_ms(call.record) - timeline.wait_ms - timeline.step_ms
    return found


def summarise(
    calls: Sequence[Call], events: Sequence[Event], samples: Sequence[Sample], *, seconds: float
) -> Values:
    """Everything that goes into the JSON, the page and the figure."""
    killed = [call for call in calls if was_killed(call, events)]
    others = [call for call in calls if call not in killed]
    counts = Counts.total([report_session(call.record).counts for call in others])
    failures = [call.record.detail for call in others if call.record.outcome is not SessionOutcome.ANSWERED]
    (kill,) = [event for event in events if event.what == "kill"]
    return {
        "calls": {
            "held": sum(call.record.outcome is SessionOutcome.ANSWERED for call in others),
            "failed_elsewhere": failures,
            "killed": len(killed),
            "on_killed_worker": kill.calls_there,
            "by_model": {model: sum(call.model == model for call in calls) for model in ("duplex", "echo")},
        },
        "frames": {
            "answered": counts.answered,
            "lost_elsewhere": counts.lost,
            "late": counts.late,
            "latency_ms": _distribution([latencies_ms(call.record) for call in others]),
        },
        "balancer": balancer_latency(others),
        "shares": shares(samples),
        "memory": memory(samples),
        "events": [asdict(event) for event in events],
        "samples": [asdict(sample) for sample in samples],
        "seconds": seconds,
    }


def faults(values: Values) -> list[str]:
    """What should not have happened to calls that were not on the killed worker."""
    calls, lost = values["calls"], values["frames"]["lost_elsewhere"]
    cut = calls["killed"] - calls["on_killed_worker"]
    found = [f"a call failed elsewhere: {detail}" for detail in calls["failed_elsewhere"]]
    found += [f"{lost} frames were lost elsewhere"] if lost else []
    # One may have come between the worker's last account and its end.
    return found + ([f"{cut} more calls were cut than the killed worker had"] if cut > 1 else [])


def balancer_latency(calls: Sequence[Call]) -> Values:
    """Transport of frames through the load balancer and directly, of the same model at the same time."""
    same = [call for call in calls if call.model == "echo"]
    ways = {
        way: _distribution([transport_ms(call) for call in same if call.is_direct is is_direct])
        for way, is_direct in (("through_balancer_ms", False), ("direct_ms", True))
    }
    through, direct_ms = ways["through_balancer_ms"], ways["direct_ms"]
    added = {
        f"added_{name}_ms": round(through[name] - direct_ms[name], 3) if through and direct_ms else None
        for name in ("p50", "p95", "p99")
    }
    return {**ways, **added}


def _distribution(parts: Sequence[Seconds]) -> Values | None:
    found = Distribution.of(np.concatenate(parts)) if parts else None
    return None if found is None else {name: round(value, 3) for name, value in asdict(found).items()}


def shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Of all calls at any moment, the mean share each worker held."""
    totals: dict[str, float] = {}
    for sample in samples:
        for host, used in sample.used.items():
            totals[host] = totals.get(host, 0.0) + (used or 0)
    everything = sum(totals.values()) or 1.0
    return {host: round(total / everything, 3) for host, total in totals.items()}


def memory(samples: Sequence[Sample]) -> dict[str, Values]:
    """Resident MiB of each process in its own life: the median of its second quarter, its last, the most."""
    found = {}
    for name in dict.fromkeys(name for sample in samples for name in sample.memory):
        sizes = np.array([sample.memory[name] for sample in samples if name in sample.memory]) / MIB
        quarter = max(1, sizes.size // 4)
        found[name] = {
            "seconds": round(sizes.size / len(samples) * samples[-1].at_s),
            "early_mib": round(float(np.median(sizes[quarter : 2 * quarter + 1])), 1),
            "late_mib": round(float(np.median(sizes[-quarter:])), 1),
            "max_mib": round(float(sizes.max()), 1),
        }
    return found


def render(values: Values) -> str:
    """The page."""
    calls, frames, balancer = values["calls"], values["frames"], values["balancer"]
    latency = frames["latency_ms"] or {}
    events = ", ".join(
        f"{event['what']} of {event['where']} at {event['at_s']:.0f} s ({event['calls_there']} calls there)"
        for event in values["events"]
    )
    rows = "\n".join(
        f"| {host} | {_percent(values['shares'].get(host))} | {size['seconds']} "
        f"| {size['early_mib']} | {size['late_mib']} | {size['max_mib']} |"
        for host, size in values["memory"].items()
    )
    ways = (
        ("through the load balancer", balancer["through_balancer_ms"]),
        ("directly", balancer["direct_ms"]),
    )
    settings, answered, lost = values["settings"], frames["answered"], frames["lost_elsewhere"]
    return (
        "# Two models behind the load balancer\n\n"
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}.\n\n"
        f"{settings['workers']} workers of `tiny` (duplex) and {settings['workers']} of `echo`, "
        f"{settings['slots']} slots each. "
        f"{settings['callers']} callers through the load balancer and {settings['direct']} beside it for "
        f"{values['seconds']:.0f} s: {calls['held']} calls held to their end; {events}.\n\n"
        f"Calls cut by the kill: {calls['killed']}. Of all other calls {len(calls['failed_elsewhere'])} "
        f"failed and **{lost} frames were lost** of {answered + lost}; {frames['late']} were late, p99 frame "
        "latency "
        f"{latency.get('p99', float('nan')):.1f} ms.\n\n"
        "What is not the model's of a frame's latency (network, load balancer, sockets, the generator):\n\n"
        "| ms | p50 | p95 | p99 |\n|---|---|---|---|\n"
        + "".join(
            f"| {name} | {way['p50']:.2f} | {way['p95']:.2f} | {way['p99']:.2f} |\n"
            for name, way in ways
            if way
        )
        + "| added | {added_p50_ms} | {added_p95_ms} | {added_p99_ms} |\n\n".format(**balancer)
        + "| process | share of calls, by host | its life, s | MiB early | MiB late | MiB most |\n"
        "|---|---|---|---|---|---|\n"
        f"{rows}\n\n![calls at each worker, and memory, over time](mixed-load.png)\n"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def plot(values: Values, path: Path) -> None:
    """Calls at each worker and memory, over time, with what was done to the stack.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = load_matplotlib().Figure(figsize=(9, 6), layout="constrained")
    calls, memory_axes = figure.subplots(2, 1, sharex=True)
    at_s = [sample["at_s"] for sample in values["samples"]]
    for host in values["shares"]:
        calls.plot(
            at_s, [sample["used"].get(host) for sample in values["samples"]], label=host, drawstyle="steps"
        )
    for host in values["memory"]:
        sizes = [sample["memory"].get(host, np.nan) / MIB for sample in values["samples"]]
        memory_axes.plot(at_s, sizes, label=host)
    for event in values["events"]:
        for axes in (calls, memory_axes):
            axes.axvline(event["at_s"], color="grey", linewidth=0.8)
        calls.annotate(event["what"], (event["at_s"], 0), rotation=90, fontsize=8)
    calls.set(ylabel="calls at each worker")
    memory_axes.set(xlabel="seconds", ylabel="resident memory [MiB]")
    calls.legend(fontsize=7, ncols=3)
    figure.savefig(path, dpi=120)

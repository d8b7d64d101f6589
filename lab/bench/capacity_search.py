"""The arithmetic of capacity: the criteria for holding a load, and the search for the largest load."""

from __future__ import annotations

from collections.abc import Callable

from lab.bench.harness import Values

MAX_P99_MS = 80.0
MAX_DRIFT_MS = 8.0
"""Milliseconds, a tenth of a frame, from the first quarter of a run to its last: a growing backlog exceeds
it."""

MAX_SEND_LATE = 0.5
"""Share of a message's period: a generator later than that at p99 was not in real time."""

STEP_DOWN = 0.95


def faults(report: Values, *, full_load_s: float, message_ms: float) -> list[str]:
    """Return the reasons why a probe's report does not prove capacity; empty if it does.

    Capacity requires that every session is answered at a random phase in real time, with 0 lost frames, no
    growing backlog, and a p99 frame latency under 80 ms, with all sessions at once for ``full_load_s``, from
    a generator that sent its messages of ``message_ms`` in time.
    """
    counts, latency, drift_ms = report["counts"], report["times"]["latency"], report["drift_ms"]
    send_late = report["generator"]["send_late_ms"]
    found = [
        f"{count} {what}"
        for count, what in (
            (report["rejected"], "sessions rejected"),
            (report["failed"], "sessions failed"),
            (counts["lost"], "frames lost"),
            (counts["misplaced"], "replies misplaced"),
            (report["generator"]["dropped_messages"], "messages the generator was too late to send"),
        )
        if count
    ]
    if send_late is not None and send_late["p99"] > MAX_SEND_LATE * message_ms:
        found.append(f"the generator's messages left {send_late['p99']:.1f} ms late at p99")
    if latency is None:
        return [*found, "no frame answered"]
    if latency["p99"] >= MAX_P99_MS:
        found.append(f"p99 frame latency {latency['p99']:.1f} ms")
    if drift_ms is not None and drift_ms > MAX_DRIFT_MS:
        found.append(f"latency grew by {drift_ms:.1f} ms")
    if report["full_load_s"] < full_load_s:
        found.append(f"{report['full_load_s']:.1f} s at full load of {full_load_s:g} s")
    return found


def speech_faults(report: Values, *, full_load_s: float) -> list[str]:
    """Return the reasons why a probe's report of simultaneous texts does not prove capacity; empty if it
    does.

    Every session must be admitted, get speech for ``full_load_s``, and keep a player with a buffer of
    80 ms from running empty, so that each frame arrives in real time.
    """
    spoken_s = report["audio_s"] / report["sessions"]
    found = [
        f"{count} {what}"
        for count, what in (
            (report["rejected"], "sessions rejected"),
            (report["failed"], "sessions failed"),
            (report["gaps"], "times a player ran dry"),
        )
        if count
    ]
    if spoken_s < full_load_s:
        found.append(f"{spoken_s:.1f} s of speech a session of {full_load_s:g} s")
    return found


def search_largest(holds: Callable[[int], bool], *, start: int, limit: int, tolerance: float = 0.04) -> int:
    """Return the largest load that holds, up to ``limit``: doubled from ``start``, then searched by halving.

    It stops when the next larger failing load is within ``tolerance``, or one above; 0 if none holds.
    """
    low, high = 0, limit + 1
    trial = min(start, limit)
    while low < trial < high:
        if holds(trial):
            low = trial
            trial = min(2 * trial, limit)
        else:
            high = trial
    while high - low > max(1, int(low * tolerance)):
        trial = (low + high) // 2
        if holds(trial):
            low = trial
        else:
            high = trial
    return low


def confirm_largest(holds: Callable[[int, int], bool], *, found: int, runs: int) -> int:
    """Return the largest load, at most ``found``, that holds in all of ``runs`` runs; 0 if none does."""
    sessions = found
    while sessions > 0 and not all(holds(sessions, run) for run in range(runs)):
        sessions = min(sessions - 1, int(sessions * STEP_DOWN))
    return sessions

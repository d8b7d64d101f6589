"""Capacity as arithmetic: what holding a load means, and how to find the largest one. Pure."""

from __future__ import annotations

from collections.abc import Callable

from lab.bench.harness import Values

MAX_P99_MS = 80.0
MAX_DRIFT_MS = 8.0
"""A tenth of a frame, from the first quarter of a run to its last: a backlog that grows, grows by more."""

MAX_SEND_LATE = 0.5
"""Of a message's period: a generator later than that at p99 no longer spoke in real time."""

STEP_DOWN = 0.95


def faults(report: Values, *, full_load_s: float, message_ms: float) -> list[str]:
    """Why a probe's report is no proof of capacity; empty when it is one.

    Capacity asks for every session answered at random phases in real time, 0 lost, no backlog growing, and
    a p99 frame latency under 80 ms, with all sessions at once for ``full_load_s``, from a generator that
    was in time itself with its messages of ``message_ms``.
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
    """Why a probe's report of texts spoken at once is no proof of capacity; empty when it is one.

    Every session must be let in, be spoken to for ``full_load_s`` and never leave a player that starts with
    80 ms dry: then each frame came in real time.
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
    """The largest load found to hold, up to ``limit``: doubled from ``start``, then halved in between.

    Stops when the next one that fails is within ``tolerance`` of it, or one above; 0 when none holds.
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
    """The largest load, at most ``found``, that holds in ``runs`` runs out of ``runs``; 0 when none does."""
    sessions = found
    while sessions > 0 and not all(holds(sessions, run) for run in range(runs)):
        sessions = min(sessions - 1, int(sessions * STEP_DOWN))
    return sessions

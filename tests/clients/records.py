"""Session records made without a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon_client.record import SessionOutcome, SessionRecord, Timeline

FRAME_S = 0.08
NAN = float("nan")


def make_record(
    latencies_ms: list[float],
    *,
    session: int = 0,
    delay_frames: int = 0,
    outcome: SessionOutcome = SessionOutcome.ANSWERED,
    planned_frames: int | None = None,
    ended_s: float | None = None,
    origin_s: float = 1.0,
    **extra: Any,
) -> SessionRecord:
    """A session whose frame i was whole at ``origin_s + 80 ms * i`` and answered so long after; NaN never."""
    frames = len(latencies_ms)
    sent_s = origin_s + FRAME_S * np.arange(frames, dtype=np.float64)
    replied_s = sent_s + np.array(latencies_ms, np.float64) / 1000
    known = ~np.isnan(replied_s)
    return SessionRecord(
        session=session,
        outcome=outcome,
        detail="" if outcome is SessionOutcome.ANSWERED else "the server is full: 0 of 4 rows are free",
        planned_frames=frames if planned_frames is None else planned_frames,
        delay_frames=delay_frames,
        frame_samples=1920,
        sample_rate=24_000,
        connect_s=origin_s - 0.5,
        ready_s=origin_s - 0.4 if frames else None,
        first_sent_s=origin_s - 0.06 if frames else None,
        ended_s=origin_s + FRAME_S * frames + 1.0 if ended_s is None else ended_s,
        timeline=Timeline(
            sent_s=sent_s,
            replied_s=replied_s,
            step_ms=np.where(known, 5.0, NAN),
            wait_ms=np.where(known, 1.0, NAN),
            arrived_s=np.sort(replied_s[known]),
            arrived_samples=np.full(int(known.sum()), 1920),
            send_late_ms=np.full(frames, 0.2),
        ),
        **extra,
    )

"""Facts about a session from the engine, as events for its client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.ipc.engine_client import CallSession, ModelFacts
from antiphon.protocol import events
from antiphon.protocol.chat import parameters_to_json
from antiphon.protocol.moshi import Event


def queued(session: CallSession, ahead: int) -> Event:
    """Its place in the queue."""
    return events.queued(position=ahead, ahead=ahead, retry_after_s=session.retry_after_s)


def ready(
    session: CallSession,
    model: str,
    info: ModelFacts,
    *,
    is_recorded: bool = False,
    resume: Mapping[str, Any] | None = None,
) -> Event:
    """It has a row, of the model that callers call so."""
    return events.ready(
        session=session.id,
        model=model,
        sample_rate=info.spec.sample_rate,
        frame_samples=info.spec.frame_samples,
        slots=info.slots,
        parameters=parameters_to_json(session.parameters),
        recorded=is_recorded,
        resume=resume,
    )


def stats(session: CallSession) -> Event:
    """Its numbers now."""
    now = session.stats()
    return events.stats(
        frames_in=now.frames_in,
        frames_out=now.frames_out,
        queue_frames=now.queue_frames,
        late=now.late,
        lost=now.lost,
        dropped=now.dropped_in,
        dropped_out=now.dropped_out,
        step_ms_p50=round(now.step_ms_p50, 1),
        step_ms_p99=round(now.step_ms_p99, 1),
    )

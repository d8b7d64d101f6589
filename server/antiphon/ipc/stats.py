"""One session's statistics, from what the engine and the caller's half have counted."""

from __future__ import annotations

from antiphon.ipc.arena import RECENT_TICKS
from antiphon.ipc.client_context import ClientContext
from antiphon.ipc.rings import InputWriter
from antiphon.ipc.sends import SendStats
from antiphon.ipc.values import SessionStats, percentile


def read_stats(
    side: ClientContext, lease: int, sends: SendStats, writer: InputWriter | None, *, queue: int
) -> SessionStats:
    """What became of the frames of a lease; ``queue`` wait for the model, ``writer`` is None for text."""
    counts, rings, outputs = side.arena.engine, side.inputs, side.outputs
    taken, flushed_in = int(counts.taken[lease]), int(counts.flushed_in[lease])
    frames_in, dropped_in = taken, 0
    if writer is not None:
        frames_in = writer.frames
        flushed_in += max(0, int(rings.discarded[lease] - rings.taken[lease]))
        over = writer.waiting - queue if side.spec.kind.is_live else 0
        dropped_in = int(counts.dropped_in[lease]) + writer.refused + over
    recent = slice(0, min(taken, RECENT_TICKS))
    step_ms, wait_ms = map(sorted, side.arena.blocks["recent_ms"][lease, recent].T.tolist())
    return SessionStats(
        frames_in=frames_in,
        frames_taken=taken,
        frames_out=sends.out,
        late=sends.late,
        lost=int(counts.lost[lease]),
        silent=int(counts.silent[lease]),
        dropped_in=dropped_in,
        dropped_out=sends.dropped_out + max(0, int(outputs.discarded[lease] - outputs.taken[lease])),
        flushed_in=flushed_in,
        flushed_out=sends.flushed_out + int(counts.flushed_out[lease]),
        queue_frames=queue,
        reply_frames=outputs.waiting_for_caller(lease),
        step_ms_p50=percentile(step_ms, 0.5),
        step_ms_p99=percentile(step_ms, 0.99),
        wait_ms_p50=percentile(wait_ms, 0.5),
        wait_ms_p99=percentile(wait_ms, 0.99),
    )

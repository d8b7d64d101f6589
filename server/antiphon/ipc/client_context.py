"""State that sessions of one front end share (memory, reports, wake-ups), and each session's counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np

from antiphon.ipc import messages
from antiphon.ipc.rings import Arena, Counts, InputRings, InputWriter, OutputRings
from antiphon.ipc.values import RECENT_TICKS, SessionStats, percentile
from antiphon.models.spec import ModelSpec

BATCH_S: Final = 0.02
"""Minimum seconds between reports of sent frames: a quarter of a frame."""

MAX_BATCH: Final = 2048
"""Maximum number of sent frames in one report."""

PACE: Final = 0.9
"""Frames that arrive faster than one in ``PACE`` frame lengths are a burst of the sender, and not a delay of
the server.
"""


Loop: TypeAlias = asyncio.AbstractEventLoop


class LoopNotifier:
    """Calls a function on an event loop's thread, once for all requests that arrive before it runs."""

    def __init__(self, loop: Loop, callback: Callable[[], None]) -> None:
        """Call ``callback`` on ``loop``."""
        self._loop, self._callback = loop, callback
        self._is_set = False

    def notify(self) -> None:
        """Request a call of the function, from any thread."""
        if self._is_set:
            return
        self._is_set = True
        with suppress(RuntimeError):  # the loop is closed: the process is shutting down
            self._loop.call_soon_threadsafe(self._call)

    def _call(self) -> None:
        self._is_set = False  # cleared first: a later request needs another call
        self._callback()


class SendStats:
    """Counters that the front end keeps for one session: frames sent, late frames, and replies given up."""

    def __init__(self, spec: ModelSpec, deliveries: LatencyReport, *, is_live: bool) -> None:
        """Start with nothing counted; all sessions share ``deliveries``."""
        self._deliveries = deliveries
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind.has_deadlines  # text is complete long before it is synthesised
        self._is_live = is_live
        self.is_heard = False
        self.due_s = float("-inf")
        self.out = 0
        self.late = 0
        self.dropped_out = 0
        self.flushed_out = 0

    def sent(
        self, complete_s: float, sent_s: float, peer_wait_s: float, *, first_complete_s: float | None
    ) -> None:
        """Record a reply that was written to its socket at ``sent_s``, after ``peer_wait_s`` of waiting for a
        slow peer.

        ``first_complete_s`` is the time at which the session's first frame was complete, or None for a reply
        without audio; only the first reply with audio counts.

        The latency of a live frame counts from when the frame was complete. Admission sees a smaller value: a
        frame of a burst counts from the time at which it was due, and waiting for the peer is subtracted. In
        a pipeline that is not live, every latency counts from when the frame is due, because a caller may
        send a recording as fast as the server reads.
        """
        if first_complete_s is not None and not self.is_heard:
            self.is_heard = True
            self._deliveries.first_audio(sent_s - first_complete_s)
        if not self._has_deadlines:
            return
        due_s = self.due_s = max(complete_s, self.due_s + PACE * self._frame_s)
        latency_s = max(0.0, sent_s - (complete_s if self._is_live else due_s))
        is_late = latency_s > self._frame_s
        self.late += is_late
        is_pressing = sent_s - peer_wait_s - due_s > self._frame_s
        self._deliveries.sent(sent_s, latency_s, is_late=is_late, is_pressing=is_pressing)


class LatencyReport:
    """Reports, in one message, replies that the sessions of one model wrote to sockets."""

    def __init__(self, loop: Loop, model: int, send: Callable[[messages.Request], None]) -> None:
        """Report for the model of this number."""
        self._loop, self._model, self._send = loop, model, send
        self._latency_s: list[float] = []
        self._first_s: list[float] = []
        self._sent_s = 0.0
        self._late = self._pressing = self._refused = 0
        self._is_called = False

    def sent(self, sent_s: float, latency_s: float, *, is_late: bool, is_pressing: bool) -> None:
        """Record a reply written to its socket; ``is_pressing``: the reply is late, and its peer is not the
        cause.
        """
        self._sent_s = sent_s
        self._latency_s.append(latency_s)
        self._late += is_late
        self._pressing += is_pressing
        self._report_soon()

    def first_audio(self, seconds: float) -> None:
        """Record a session's first audio, ``seconds`` after its first whole frame."""
        self._first_s.append(seconds)
        self._report_soon()

    def refused(self, frames: int) -> None:
        """Count frames that a full ring refused."""
        self._refused += frames
        self._report_soon()

    def _report_soon(self) -> None:
        if len(self._latency_s) >= MAX_BATCH:
            self._report()
        elif not self._is_called:
            self._is_called = True
            self._loop.call_later(BATCH_S, self._report)

    def _report(self) -> None:
        self._is_called = False
        latencies, first = (np.array(it, np.float32) for it in (self._latency_s, self._first_s))
        counts = self._late, self._pressing, first, self._refused
        self._send(messages.Sent(self._model, self._sent_s, latencies, *counts))
        self._latency_s, self._first_s = [], []
        self._late = self._pressing = self._refused = 0


T = TypeVar("T")

LOOKS: Final = 1000
"""Number of attempts to read consistent counters. The engine changes them within microseconds, unless it died
meanwhile.
"""


class ClientContext:
    """Memory, rings, limits and the report that the sessions of one model share in a front end."""

    def __init__(
        self, spec: ModelSpec, arena: Arena, *, text_entries: int, deliveries: LatencyReport
    ) -> None:
        """``arena`` holds the leases of this front end."""
        self.spec, self.arena = spec, arena
        self.inputs, self.outputs = InputRings(arena), OutputRings(arena)
        self.text_entries, self.deliveries = text_entries, deliveries
        self._changed: list[Callable[[], None] | None] = [None] * arena.leases
        self._ticks: Counts = np.zeros(arena.leases, np.int64)

    def seat(self, lease: int, changed: Callable[[], None] | None) -> None:
        """Set the session of a lease; its ``changed`` is called after ticks. None means that the session has
        closed.
        """
        self._changed[lease] = changed
        if changed is not None:
            self._ticks[lease] = 0

    def look(self) -> None:
        """Call ``changed`` of each session that took part in a tick since the last call."""
        ticks = self.arena.engine.ticks
        for lease in np.flatnonzero(ticks != self._ticks).tolist():
            self._ticks[lease] = ticks[lease]
            if (changed := self._changed[lease]) is not None:
                changed()

    def consistently(self, read: Callable[[], T]) -> T:
        """The result of ``read`` from a moment at which the engine's counters did not change."""
        for _ in range(LOOKS):
            turn = self.arena.sequence
            if turn % 2 == 0:
                found = read()
                if self.arena.sequence == turn:
                    return found
            time.sleep(0)  # the engine thread is changing its counters
        return read()


class ChangedSessions(Generic[T]):
    """Sessions whose owners will be notified, each once. ``contexts`` has the contexts of all models."""

    def __init__(self, loop: Loop, notify: Callable[[T], None]) -> None:
        """Notify on the thread of this event loop, which is the only one that may use this object."""
        self.contexts: list[ClientContext] = []
        self._loop, self._notify = loop, notify
        self._changed: dict[T, None] = {}

    def add(self, session: T) -> None:
        """Schedule a notification of a changed session's owner."""
        is_first = not self._changed
        self._changed[session] = None
        if is_first:
            self._loop.call_soon(self.notify)

    def notify(self) -> None:
        """Notify the owners of the changed sessions now."""
        changed, self._changed = self._changed, {}
        for session in changed:
            self._notify(session)

    def look(self) -> None:
        """Notify the owners of the changed sessions and of the sessions that took part in ticks."""
        for context in self.contexts:
            context.look()
        self.notify()


def read_stats(
    side: ClientContext, lease: int, sends: SendStats, writer: InputWriter | None, *, queue: int
) -> SessionStats:
    """The outcome of a lease's frames; ``queue`` frames wait for the model, ``writer`` is None if the input
    is text.
    """
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

"""Counts of the replies that a caller's half hands to a socket."""

from __future__ import annotations

from typing import Final

from antiphon.ipc.link import Deliveries
from antiphon.models.spec import ModelSpec, PipelineKind

PACE: Final = 0.9
"""Frames coming faster than one in ``PACE`` frame lengths are their sender's burst, not our delay."""


class SendLedger:
    """What one session's own side counts: frames sent, late ones, replies given up."""

    def __init__(self, spec: ModelSpec, deliveries: Deliveries, *, is_live: bool) -> None:
        """Start with nothing counted; ``deliveries`` are shared by all sessions."""
        self._deliveries = deliveries
        self._frame_s = spec.frame_ms / 1000.0
        self._has_deadlines = spec.kind is not PipelineKind.TTS  # text is complete long before it is spoken
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
        """A reply was handed to the socket at ``sent_s``, of which ``peer_wait_s`` went into a slow peer.

        ``first_complete_s`` is when the session's first frame was complete, None for a reply without audio,
        and for any but the first with audio: then it ``is_heard``.

        A live frame's latency counts from when it was complete. What presses on admission is less: a frame
        that came in a burst counts from the time real time would have brought it, and the peer's own slowness
        is taken off. A pipeline that is not live counts every latency from when the frame is due: its callers
        may send a recording as fast as it is read, and a second at a time.
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

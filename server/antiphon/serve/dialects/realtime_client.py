"""The common part of both kinds of Realtime session: ids, items, events to the client, and the session
object.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any, Final

from antiphon.audio.vad import DetectorRules
from antiphon.protocol.realtime_events import Event, Ids, encode
from antiphon.protocol.realtime_items import Items
from antiphon.protocol.realtime_session import Detection, RealtimeSession
from antiphon.serve.transport.frames import TEXT, frame
from antiphon.serve.transport.socket import Socket

LIFE_S: Final = 86_400
"""From the start to ``expires_at``, a field that the API requires. Sessions have no limit."""


class RealtimeClient:
    """The client of one session, who reads events. ``socket`` is there once the connection is open."""

    def __init__(self) -> None:
        """Name the session."""
        self.ids = Ids(secrets.token_hex(6))
        self.items = Items(self.ids)
        self.socket: Socket | None = None
        self.session_id, self.expires_at = self.ids.new("sess"), int(time.time()) + LIFE_S

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read what was written."""
        return self.socket is not None and self.socket.is_congested()

    def say(self, events: Iterable[Event]) -> None:
        """Send events, in one write."""
        if self.socket is not None and (written := b"".join(map(self.framed, events))):
            self.socket.write(written)

    def framed(self, event: Event) -> bytes:
        """The next event, as it is written."""
        return frame(encode(event, self.ids.new("event")), TEXT)

    def shown(self, session: RealtimeSession) -> dict[str, Any]:
        """A session object of this session's id."""
        return session.shown(session_id=self.session_id, expires_at=self.expires_at)


def rules_of(detection: Detection | None) -> DetectorRules:
    """What the detector of speech goes by."""
    if detection is None:
        return DetectorRules()
    return DetectorRules(detection.level_dbfs, detection.prefix_ms, detection.silence_ms)

"""Common to both kinds of Realtime session: ids, items, events to the client, and the session object."""

from __future__ import annotations

import secrets
import time
from typing import Any

from antiphon.audio.vad import DetectorRules
from antiphon.protocol.event_text import expiry_of
from antiphon.protocol.realtime import CreateItem, DeleteItem, RetrieveItem
from antiphon.protocol.realtime_events import Event, Ids, encode
from antiphon.protocol.realtime_items import Items
from antiphon.protocol.realtime_session import Detection, RealtimeSession


class RealtimeClient:
    """The client's view of one session: ids, items, and when it ends."""

    def __init__(self) -> None:
        """Name the session."""
        self.ids = Ids(secrets.token_hex(6))
        self.items = Items(self.ids)
        self.session_id, self.expires_at = self.ids.new("sess"), expiry_of(time.time())

    def change_items(self, asked: CreateItem | RetrieveItem | DeleteItem) -> list[Event]:
        """Handle an event about items.

        Raises:
            FieldError: such an item exists already, or does not exist.
        """
        match asked:
            case CreateItem():
                return self.items.create(asked.item, asked.previous, asked.event_id)
            case RetrieveItem():
                return self.items.retrieve(asked.item_id, asked.event_id)
            case DeleteItem():
                return self.items.delete(asked.item_id, asked.event_id)

    def written(self, *events: Event) -> list[str]:
        """The next events, as they are sent."""
        return [encode(event, self.ids.new("event")) for event in events]

    def shown(self, session: RealtimeSession) -> dict[str, Any]:
        """A session object with this session's id."""
        return session.shown(session_id=self.session_id, expires_at=self.expires_at)


def rules_of(detection: Detection | None) -> DetectorRules:
    """The settings of the speech detector."""
    if detection is None:
        return DetectorRules()
    return DetectorRules(detection.level_dbfs, detection.prefix_ms, detection.silence_ms)

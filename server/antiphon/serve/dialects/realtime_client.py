"""The common part of all Realtime sessions: ids, items, the session object, and events on both kinds of
connection.

On a WebSocket all audio is in events. A peer connection has tracks for audio. There a binary message is
audio, in plain samples of 16 bits at 24 kHz in both directions. An empty binary message to the client drops
unsent audio.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

from antiphon.audio.vad import DetectorRules
from antiphon.protocol import realtime
from antiphon.protocol.event_text import expiry_of, text_of
from antiphon.protocol.live_session import LiveFormat
from antiphon.protocol.realtime import CreateItem, DeleteItem, RetrieveItem
from antiphon.protocol.realtime_events import Event, Ids, encode, event
from antiphon.protocol.realtime_items import Items
from antiphon.protocol.realtime_response import COMPLETED
from antiphon.protocol.realtime_session import Detection, RealtimeSession
from antiphon.serve.transport.transport import Message


class RealtimeClient:
    """The client's view of one session: ids, items, and when it ends.

    ``has_tracks``: audio and events use separate channels.
    """

    def __init__(self, *, has_tracks: bool = False) -> None:
        """Name the session."""
        self.ids = Ids(secrets.token_hex(6))
        self.items = Items(self.ids)
        self.session_id, self.expires_at = self.ids.new("sess"), expiry_of(time.time())
        self.has_tracks = has_tracks
        self._sounding = ""  # the response whose audio leaves by a track

    def read(self, message: Message, *, has_tools: bool = False) -> realtime.ClientEvent:
        """The event in a message; audio of a track also becomes an event.

        Raises:
            FieldError: as :func:`antiphon.protocol.realtime.decode`.
        """
        if self.has_tracks and isinstance(message, bytes):
            return realtime.AppendAudio(message)
        return realtime.decode(text_of(message), has_tools=has_tools)

    def settled(self, session: RealtimeSession) -> RealtimeSession:
        """A session in the formats of its connection: a connection with tracks has only one format."""
        if not self.has_tracks:
            return session
        output = replace(session.output, format=LiveFormat())
        return replace(session, input_format=LiveFormat(), output=output)

    def change_items(self, asked: CreateItem | RetrieveItem | DeleteItem) -> list[Event]:
        """Handle an event about items.

        Raises:
            FieldError: the item already exists, or does not exist.
        """
        match asked:
            case CreateItem():
                return self.items.create(asked.item, asked.previous, asked.event_id)
            case RetrieveItem():
                return self.items.retrieve(asked.item_id, asked.event_id)
            case DeleteItem():
                return self.items.delete(asked.item_id, asked.event_id)

    def written(self, *events: Event) -> list[Message]:
        """Encode the next events as they are sent."""
        if self.has_tracks:
            return [message for it in events for message in self._with_tracks(it)]
        return [self._text(it) for it in events]

    def _text(self, it: Event) -> str:
        return encode(it, self.ids.new("event"))

    def _with_tracks(self, it: Event) -> list[Message]:
        """An event, or the audio in it, and events about the begin and the end of a response's audio."""
        if it.type == "response.output_audio.delta":
            response, before = it.fields["response_id"], self._sounding
            self._sounding = response
            begun = event("output_audio_buffer.started", response_id=response)
            return [*([] if before == response else [self._text(begun)]), it.fields["delta"]]
        if it.type != "response.done" or not self._sounding:
            return [self._text(it)]
        is_whole = it.fields["response"]["status"] == COMPLETED
        kind = "output_audio_buffer.stopped" if is_whole else "output_audio_buffer.cleared"
        over, self._sounding = event(kind, response_id=self._sounding), ""
        return [*([] if is_whole else [b""]), self._text(it), self._text(over)]

    def shown(self, session: RealtimeSession) -> dict[str, Any]:
        """A session object with this session's id."""
        return session.shown(session_id=self.session_id, expires_at=self.expires_at)


def rules_of(detection: Detection | None) -> DetectorRules:
    """The rules of the speech detector for the field ``turn_detection``."""
    if detection is None:
        return DetectorRules()
    return DetectorRules(detection.level_dbfs, detection.prefix_ms, detection.silence_ms)

"""Events from a server of OpenAI Realtime: JSON events, one in each WebSocket text message.

Derived from the types of the ``openai`` package 3.54.0 (``types/realtime``). An event consists of its type
and its fields. :mod:`antiphon.protocol.realtime_reply` and :mod:`antiphon.protocol.realtime_input` create
events in the API's order.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.protocol.live_events import error_of
from antiphon.protocol.payload import object_text


@dataclass(frozen=True, slots=True)
class Event:
    """One event; ``fields`` are all except its type and its own id."""

    type: str
    fields: Mapping[str, Any]


class Ids:
    """Identifiers of one session, unique among all sessions: ``item_7f3a_3``."""

    def __init__(self, session: str) -> None:
        """Create ids for ``session``, a unique name."""
        self._session = session
        self._numbers = itertools.count(1)

    def new(self, kind: str) -> str:
        """The next id with the prefix ``kind``."""
        return f"{kind}_{self._session}_{next(self._numbers)}"


def event(kind: str, **fields: Any) -> Event:
    """An event of this type."""
    return Event(kind, fields)


def encode(it: Event, event_id: str) -> str:
    """One event as JSON; bytes in ``delta`` are audio, sent as base64."""
    delta = it.fields.get("delta")
    sound = {"delta": base64.b64encode(delta).decode("ascii")} if isinstance(delta, bytes) else {}
    return object_text({"type": it.type, "event_id": event_id, **it.fields, **sound}, "an event")


def error_event(reason: AntiphonError) -> Event:
    """The ``error`` event of an exception; ``event_id`` is the id of the client's event."""
    error = error_of(reason)
    values = {
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "event_id": error.client_event_id,
    }
    return event("error", error=values)

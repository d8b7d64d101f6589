"""Events from a server of OpenAI Realtime: JSON events, one a WebSocket text message.

Read off the types of the ``openai`` package 3.54.0 (``types/realtime``). An event is its type and its fields;
:mod:`antiphon.protocol.realtime_reply` and :mod:`antiphon.protocol.realtime_input` make them in the order
that the API promises.
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
    """One event; ``fields`` are all but its type and its own id."""

    type: str
    fields: Mapping[str, Any]


class Ids:
    """Identifiers of one session, unlike those of any other: ``item_7f3a_3``."""

    def __init__(self, session: str) -> None:
        """Make ids for ``session``, a name that no other session has."""
        self._session = session
        self._numbers = itertools.count(1)

    def new(self, kind: str) -> str:
        """The next one."""
        return f"{kind}_{self._session}_{next(self._numbers)}"


def event(kind: str, **fields: Any) -> Event:
    """An event of this type."""
    return Event(kind, fields)


def encode(it: Event, event_id: str) -> str:
    """One event as JSON; bytes in ``delta`` are sound, which goes as base64."""
    delta = it.fields.get("delta")
    sound = {"delta": base64.b64encode(delta).decode("ascii")} if isinstance(delta, bytes) else {}
    return object_text({"type": it.type, "event_id": event_id, **it.fields, **sound}, "an event")


def error_event(reason: AntiphonError) -> Event:
    """The ``error`` event for what went wrong; ``event_id`` is that of the client's event."""
    error = error_of(reason)
    values = {
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "event_id": error.client_event_id,
    }
    return event("error", error=values)

"""The items of a Realtime conversation: speech and text, up to a limit."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from antiphon.errors import FieldError
from antiphon.protocol.realtime_events import Event, Ids, event

MAX_ITEMS = 1000
MAX_KEPT_CHARS = 262_144
"""Maximum number of characters of all items as JSON; beyond that, the oldest are deleted.

No model reads an item again after it was deleted.
"""


def user_audio(item_id: str, transcript: str | None = None) -> dict[str, Any]:
    """The item of a caller's speech."""
    content = {"type": "input_audio", "transcript": transcript}
    return message(item_id, "user", "completed", [content])


def message(item_id: str, role: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """An item of text or audio."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "status": status,
        "role": role,
        "content": content,
    }


def function_call(item_id: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    """The item of a tool call."""
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


class Items:
    """The items of one conversation, in order."""

    def __init__(self, ids: Ids) -> None:
        """Begin without items."""
        self._ids = ids
        self._items: OrderedDict[str, tuple[dict[str, Any], int]] = OrderedDict()
        self._chars = 0
        self.last: str | None = None

    def __contains__(self, item_id: str) -> bool:
        """Whether an item with this id is kept."""
        return item_id in self._items

    def added(self, item: dict[str, Any]) -> Event:
        """Add a new item after the last."""
        before = self.last
        self._keep(item)
        self.last = item["id"]
        return event("conversation.item.added", previous_item_id=before, item=item)

    def replace(self, item: dict[str, Any]) -> None:
        """Replace the item with the same id, unless it was deleted."""
        if item["id"] in self._items:
            self._keep(item)

    def done(self, item: dict[str, Any], previous: str | None) -> Event:
        """Mark an item as complete."""
        self.replace(item)
        return event("conversation.item.done", previous_item_id=previous, item=item)

    def create(self, item: Mapping[str, Any], after: str | None, event_id: str | None) -> list[Event]:
        """Add an item from the client.

        Raises:
            FieldError: an item with this id already exists.
        """
        item_id = item.get("id") or self._ids.new("item")
        if item_id in self._items:
            raise FieldError(
                f"item.id is {item_id!r}, and there is such an item",
                param="item.id",
                code="item_create_duplicate_item_id",
                event_id=event_id,
            )
        made = {"object": "realtime.item", "status": "completed", **item, "id": item_id}
        before = None if after == "root" else after or self.last
        self._keep(made)
        self.last = item_id
        return [
            event("conversation.item.added", previous_item_id=before, item=made),
            event("conversation.item.done", previous_item_id=before, item=made),
        ]

    def retrieve(self, item_id: str, event_id: str | None) -> list[Event]:
        """The event that returns an item.

        Raises:
            FieldError: there is no item with this id.
        """
        return [event("conversation.item.retrieved", item=self._of(item_id, "retrieve", event_id))]

    def delete(self, item_id: str, event_id: str | None) -> list[Event]:
        """Delete an item.

        Raises:
            FieldError: there is no item with this id.
        """
        self._of(item_id, "delete", event_id)
        self._forget(item_id)
        if self.last == item_id:
            self.last = next(reversed(self._items), None)
        return [event("conversation.item.deleted", item_id=item_id)]

    def _of(self, item_id: str, verb: str, event_id: str | None) -> dict[str, Any]:
        found = self._items.get(item_id)
        if found is None:
            raise FieldError(
                f"item_id is {item_id!r}, and there is no such item",
                param="item_id",
                code=f"item_{verb}_invalid_item_id",
                event_id=event_id,
            )
        return found[0]

    def _keep(self, item: dict[str, Any]) -> None:
        chars = len(json.dumps(item))
        place = item["id"]
        if place in self._items:
            self._chars -= self._items[place][1]
        self._items[place] = item, chars
        self._chars += chars
        while self._items and (self._chars > MAX_KEPT_CHARS or len(self._items) > MAX_ITEMS):
            self._forget(next(iter(self._items)))

    def _forget(self, item_id: str) -> None:
        self._chars -= self._items.pop(item_id)[1]

"""docs/live.md matches the protocol."""

from __future__ import annotations

import re
from pathlib import Path

from antiphon.protocol import live, live_events
from antiphon.protocol.resume import token_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "live.md").read_text()


def test_every_event_is_in_a_table() -> None:
    kinds = ("instructions", "thinking", "commentary")
    sent = {name.format(kind=kind) for name in live_events.TYPES.values() for kind in kinds}
    events = {*live.READERS, *sent}
    assert not [event for event in events if f"`{event}`" not in TEXT]


def test_the_token_of_the_example_is_a_token() -> None:
    (token,) = re.findall(r'"token": "([^"]+)"', TEXT)
    token_of(token)

"""docs/live.md matches the scripts of the stock clients and the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.protocol import live, live_events
from tests.stock.test_live_clients import REFUSALS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "live.md").read_text()


@pytest.mark.parametrize("words", REFUSALS.values())
def test_refusals_are_quoted(words: str) -> None:
    assert f"`{words}`" in TEXT


def test_every_event_is_in_a_table() -> None:
    kinds = ("instructions", "thinking", "commentary")
    sent = {name.format(kind=kind) for name in live_events.TYPES.values() for kind in kinds}
    events = {*live.READERS, *sent}
    assert not [event for event in events if f"`{event}`" not in TEXT]

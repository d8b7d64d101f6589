"""What docs/live.md shows is what the scripts of the stock clients do, and what the protocol has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.protocol import live, live_events
from tests.stock.test_live_clients import CLIENTS, REFUSALS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "live.md").read_text()
SCRIPTS = (*(f"{client}_live.py" for client in CLIENTS), "personaplex_chat.py")
BLOCKS = dict(zip(SCRIPTS, re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True))
VALUES = {
    "base_url=base_url": 'base_url="http://127.0.0.1:8998/v1"',
    'base_url=url.replace("http", "ws", 1) + "/live/sessions"': 'base_url="ws://127.0.0.1:8998/v1/live/sessions"',
    "base_url=url": 'base_url="http://127.0.0.1:8998/v1"',
    "base_url=address": 'base_url="http://127.0.0.1:8998"',
    "model=model": 'model="tiny"',
    "=persona": '="You are a friend."',
    '{"model": model}': '{"model": "tiny"}',
}
"""What the scripts are given, as the document writes it."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_lines_of_the_how_to_are_those_that_the_tests_run(name: str) -> None:
    script = (ROOT / "tests" / "stock" / name).read_text()
    for given, shown in VALUES.items():
        script = script.replace(given, shown)
    lines = {line.strip() for line in script.splitlines()}
    missing = [line for line in BLOCKS[name].splitlines() if line.strip() and line.strip() not in lines]
    assert missing == []


@pytest.mark.parametrize("words", REFUSALS.values())
def test_refusals_are_quoted(words: str) -> None:
    assert f"`{words}`" in TEXT


def test_every_event_is_in_a_table() -> None:
    events = {*live.UNSUPPORTED, *live.READERS, *live_events.TYPES.values()}
    assert not [event for event in events if f"`{event}`" not in TEXT]

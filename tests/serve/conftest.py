"""Event loops of test servers: the production loop, and asyncio's for some tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from antiphon.serve.hosting.event_loop import new_event_loop

BOTH = ("test_autobahn", "test_connection_faults")
MEASURED = "test_overload"
"""Runs on asyncio's loop alone, whose handlers are in Python, where they can be timed."""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that a test runs on, by name."""
    own, asyncios = {"serving": new_event_loop}, {"asyncio": asyncio.new_event_loop}
    if item.path.stem == MEASURED:
        return asyncios
    return own | asyncios if item.path.stem in BOTH else own

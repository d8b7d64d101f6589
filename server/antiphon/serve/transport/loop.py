"""The event loop that serves: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop, which takes two thirds of the CPU for a message in and out (docs/adr/0025)."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows, nor for every Python from its first day
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)

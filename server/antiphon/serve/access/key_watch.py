"""Ends calls whose key was removed from the file or has reached its daily limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from antiphon.errors import SessionError
from antiphon.serve.access.callers import Access
from antiphon.serve.calls.call import Call

PERIOD_S: Final = 5.0
"""Seconds between two checks: a call ends within 10 s of the change of its key."""

CALLS_A_TURN: Final = 32
"""Number of calls checked before the event loop serves other handlers; this takes some milliseconds."""


async def watch_keys(access: Access, calls: Iterable[Call], period_s: float = PERIOD_S) -> None:
    """Check all calls regularly while the server runs."""
    while True:
        await asyncio.sleep(period_s)
        await check_calls(access, tuple(calls))


async def check_calls(access: Access, calls: Iterable[Call]) -> None:
    """End calls whose key is no longer valid or has used its seconds of the day."""
    keyed = [call for call in calls if call.caller.key is not None]
    running_s: Counter[str] = Counter()
    for number, call in enumerate(keyed, start=1):
        if access.limit_s(call.caller):
            running_s[call.caller.name] += round(call.seconds)
        if number % CALLS_A_TURN == 0:
            await asyncio.sleep(0)
    access.running = running_s
    used = await access.used(running_s)
    for call in keyed:
        try:
            access.check(call.caller, used)
        except SessionError as error:
            call.end(error)

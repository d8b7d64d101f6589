"""State that the front ends of a server share: sessions and seconds of callers, signed requests, and a
trial.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from antiphon.canary.kept import KeptTrial
from antiphon.canary.signals import CallSignals
from antiphon.supervisor.messages import (
    AskPhase,
    Body,
    Compared,
    ControlReply,
    GiveBack,
    Message,
    Question,
    SignedRequest,
    Take,
    Taken,
    Use,
    Used,
)


class Quota:
    """The leases of all front ends; a front end's leases end with its process."""

    def __init__(self) -> None:
        """Begin without leases."""
        self._held: dict[int, dict[int, Take]] = {}
        self._by_key: Counter[tuple[str, str]] = Counter()
        self._by_address: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        """The number of leases."""
        return sum(map(len, self._held.values()))

    def take(self, front_end: int, asked: Take) -> str:
        """Grant one more session, or return the reason for the refusal."""
        of_key, of_address = self._by_key[asked.kind, asked.key], self._by_address[asked.kind, asked.address]
        refusal = refused(f"the key '{asked.key}'", of_key, asked.key_limit, asked.kind) or refused(
            f"your address {asked.address}", of_address, asked.address_limit, asked.kind
        )
        if not refusal:
            self._held.setdefault(front_end, {})[asked.lease] = asked
            self._by_key[asked.kind, asked.key] += 1
            self._by_address[asked.kind, asked.address] += 1
        return refusal

    def give_back(self, front_end: int, lease: int) -> None:
        """End one lease."""
        taken = self._held.get(front_end, {}).pop(lease, None)
        if taken is None:
            return
        for count, name in ((self._by_key, taken.key), (self._by_address, taken.address)):
            count[taken.kind, name] -= 1
            if not count[taken.kind, name]:
                del count[taken.kind, name]

    def gone(self, front_end: int) -> None:
        """End all leases of a front end whose process has ended."""
        for lease in list(self._held.get(front_end, ())):
            self.give_back(front_end, lease)
        self._held.pop(front_end, None)


KEPT_DAYS: Final = 3
"""Number of days that are kept: today, and two more in case the clock steps by a day and back."""


class DaySeconds:
    """The seconds of calls with each key on a day, from reports of running and ended front ends.

    Because a clock may step, the most recently reported days are kept, each with its own sums.
    """

    def __init__(self) -> None:
        """Begin without reports."""
        self._by_front_end: dict[str, dict[int, dict[str, float]]] = {}
        self._past: dict[str, Counter[str]] = {}

    def report(self, front_end: int, use: Use) -> Used:
        """Replace a front end's last report; returns the sums for the keys that it names."""
        reported = self._by_front_end[use.day] = self._by_front_end.pop(use.day, {})
        past = self._past.setdefault(use.day, Counter())
        reported[front_end] = dict(use.seconds)
        for day in list(self._by_front_end)[:-KEPT_DAYS]:
            del self._by_front_end[day], self._past[day]
        sums = [
            (key, past[key] + sum(each.get(key, 0.0) for each in reported.values())) for key, _ in use.seconds
        ]
        return Used(tuple(sums))

    def gone(self, front_end: int) -> None:
        """Keep the last report of a front end that has ended; its successor starts at 0."""
        for day, reported in self._by_front_end.items():
            self._past[day].update(reported.pop(front_end, {}))


FRESH_S: Final = 60.0
"""Largest age of a signed request in seconds: the difference of two workers' clocks, and the transit."""

KEPT_REQUESTS: Final = 4096
"""Number of signed requests that are kept at any age. A worker sends one request for each call that it hands
over.
"""


class SeenRequests:
    """Signed requests that were executed and may still be valid: each is executed only once per server.

    Only requests with a valid signature are added, so only workers can add entries. The clock is monotonic.
    The last requests are kept at any age, because the clock for the time in a header may step.
    """

    def __init__(self) -> None:
        """Begin without requests."""
        self._until_s: dict[str, float] = {}

    def add(self, header: str, now_s: float) -> str:
        """Add the header of a checked request; returns the reason for a refusal if it was added before."""
        while len(self._until_s) > KEPT_REQUESTS and (oldest := next(iter(self._until_s.items())))[1] < now_s:
            del self._until_s[oldest[0]]
        if header in self._until_s:
            return "this request was received before; each needs its own signature"
        self._until_s[header] = now_s + 2 * FRESH_S
        return ""


def refused(who: str, count: int, limit: int, kind: str) -> str:
    """The reason for refusing one more than ``count``, with the numbers, or ""; limit 0 means no limit."""
    return f"{who} has {count} of {limit} {kind}" if 0 < limit <= count else ""


class SharedState:
    """State of the whole server for its front ends, in the supervisor's process or in a single-process
    server.

    ``trial`` exists while a model is on trial; ``answer`` answers questions for operators.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no session and no trial; ``clock`` is monotonic."""
        self._clock, self._requests = clock, SeenRequests()
        self.trial: KeptTrial | None = None
        self.answer: Callable[[str], ControlReply] = lambda _what: Body(b"{}")
        self._sessions, self._seconds = Quota(), DaySeconds()

    def handle(self, front_end: int, message: Message) -> ControlReply:
        """Execute the request of a front end; returns its answer, if any."""
        match message:
            case Take():
                return Taken(self._sessions.take(front_end, message))
            case GiveBack():
                self._sessions.give_back(front_end, message.lease)
            case Use():
                return self._seconds.report(front_end, message)
            case SignedRequest():
                return Taken(self._requests.add(message.header, self._clock()))
            case Question(what="canary"):
                return self._report()
            case Question():
                return self.answer(message.what)
            case Compared() if self.trial is not None:
                self.trial.record(message.arm, CallSignals(*message.signals), message.caller)
            case AskPhase():
                if self.trial is not None:
                    self.trial.ask(message.phase)
                return self._report()
        return None

    def gone(self, front_end: int) -> None:
        """Release the resources of a front end whose process has ended."""
        self._sessions.gone(front_end)
        self._seconds.gone(front_end)

    def _report(self) -> Body:
        return Body(json.dumps({} if self.trial is None else self.trial.trial.report()).encode())

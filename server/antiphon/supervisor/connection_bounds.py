"""Limits on connections, in total and per address, and on the rate of new ones.

Each connection takes an open file.
"""

from __future__ import annotations

import contextlib
import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.supervisor.address import is_own

ADDRESS_SHARE: Final = 0.25
"""Share of one address in the total limit, unless configured."""

MAX_OPEN_FILES: Final = 65_536
"""Highest soft limit of open files: thousands of calls and their recordings need far fewer."""

ACCEPT_COST: Final = 0.05
"""Cost of a connection that is only accepted and closed, or that waits, relative to a served connection (1
ms): 30 to 50 us.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits on connections at once and on new connections a second, in total and per address.

    Per address, 0 means unlimited. None means a quarter of the total, and unlimited for this machine itself.
    """

    connections: int = 10_000
    connections_per_address: int | None = None
    new_per_s: float = 200.0
    new_per_s_per_address: float | None = None

    def of_address(self, address: str) -> tuple[float, float]:
        """Limits of ``address``: connections at once, and new connections a second; 0 means unlimited."""
        spared = is_own(address)
        at_once, new = self.connections_per_address, self.new_per_s_per_address
        if at_once is None:
            at_once = 0 if spared else max(1, round(self.connections * ADDRESS_SHARE))
        if new is None:
            new = 0.0 if spared else max(1.0, self.new_per_s * ADDRESS_SHARE)
        return at_once, new


class TokenBucket:
    """A token bucket: ``rate`` tokens a second, and at most one second's tokens at once."""

    __slots__ = ("_filled_s", "rate", "tokens")

    def __init__(self, rate: float, now_s: float) -> None:
        """Start full."""
        self.rate, self.tokens, self._filled_s = rate, rate, now_s

    def fill(self, now_s: float) -> float:
        """Add the tokens of the elapsed time; return the number of tokens."""
        self.tokens = min(self.rate, self.tokens + (now_s - self._filled_s) * self.rate)
        self._filled_s = now_s
        return self.tokens

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is a whole token."""
        tokens = self.fill(now_s)
        return (1.0 - tokens) / self.rate if tokens < 1.0 else 0.0


class ConnectionBounds:
    """Tracks the current connections, and computes the delay until the next one is accepted and served.

    An address beyond its own limits is rejected; beyond the total limits, the next connection waits.
    """

    def __init__(self, limits: ConnectionLimits, now_s: float) -> None:
        """Begin without connections."""
        self.limits = limits
        self.served = 0
        self._by_address: Counter[str] = Counter()
        self._accepted = TokenBucket(limits.new_per_s / ACCEPT_COST, now_s)
        self._new = TokenBucket(limits.new_per_s, now_s)
        self._each: dict[str, TokenBucket] = {}
        self._now_s = self._swept_s = now_s

    @property
    def is_full(self) -> bool:
        """Whether the limit of served connections is reached."""
        return self.served >= self.limits.connections

    def accept_wait_s(self, now_s: float) -> float:
        """Seconds until the next connection may be accepted."""
        self._now_s = now_s
        return self._accepted.wait_s(now_s)

    def let_in(self, address: str) -> str:
        """Count an accepted connection, or return the reason why its address is rejected. An address "" is
        not counted.
        """
        self._accepted.tokens -= 1.0
        refusal = self._refused(address) if address else ""
        if not refusal:
            self._by_address[address] += 1
        return refusal

    def serve_wait_s(self, now_s: float) -> float:
        """Seconds until the next connection may be served, without regard to the limit on connections."""
        return self._new.wait_s(now_s)

    def serve(self) -> None:
        """Count a connection that is served."""
        self._new.tokens -= 1.0
        self.served += 1

    def closed(self, addresses: Sequence[str]) -> None:
        """Count the end of served connections from these addresses."""
        self.served -= len(addresses)
        self.forget(addresses)

    def forget(self, addresses: Sequence[str]) -> None:
        """Count the end of accepted connections from these addresses."""
        for address in addresses:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def _refused(self, address: str) -> str:
        at_once, new = self.limits.of_address(address)
        if 0 < at_once <= self._by_address[address]:
            return f"{self._by_address[address]} of {at_once:g} connections"
        if not new:
            return ""
        self._sweep()
        bucket = self._each.get(address)
        if bucket is None:
            bucket = self._each[address] = TokenBucket(max(new, 1.0), self._now_s)
        if bucket.fill(self._now_s) < 1.0:
            return f"more than {new:g} new connections a second"
        bucket.tokens -= 1.0
        return ""

    def _sweep(self) -> None:
        """Each second, drop the addresses with a full bucket; a few hundred recent ones remain."""
        if self._now_s - self._swept_s < 1.0:
            return
        self._swept_s = self._now_s
        kept = {name: bucket for name, bucket in self._each.items() if bucket.fill(self._now_s) < bucket.rate}
        self._each = kept


def open_file_limit() -> int:
    """The current limit of open files of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_open_file_limit() -> int:
    """Raise the soft limit towards the hard one, to at most ``MAX_OPEN_FILES``; returns the new limit.

    Shells and service managers set 1024 for programs that use ``select``; the server does not use it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_file_limit()

"""Sessions of API keys and addresses, counted over all front ends, so that a limit holds for the server."""

from __future__ import annotations

from collections import Counter

from antiphon.supervisor.messages import Take


class Leases:
    """Who holds what: a lease belongs to a front end, and comes back with the end of its process."""

    def __init__(self) -> None:
        """Nobody has any."""
        self._held: dict[int, dict[int, Take]] = {}
        self._by_key: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are held."""
        return sum(map(len, self._held.values()))

    def take(self, front_end: int, asked: Take) -> str:
        """Grant one more session, or return the reason against it."""
        refusal = refused(f"the key '{asked.key}'", self._by_key[asked.key], asked.key_limit) or refused(
            f"your address {asked.address}", self._by_address[asked.address], asked.address_limit
        )
        if not refusal:
            self._held.setdefault(front_end, {})[asked.lease] = asked
            self._by_key[asked.key] += 1
            self._by_address[asked.address] += 1
        return refusal

    def give_back(self, front_end: int, lease: int) -> None:
        """End one lease."""
        taken = self._held.get(front_end, {}).pop(lease, None)
        if taken is None:
            return
        for count, name in ((self._by_key, taken.key), (self._by_address, taken.address)):
            count[name] -= 1
            if not count[name]:
                del count[name]

    def gone(self, front_end: int) -> None:
        """End all leases of a front end whose process has ended."""
        for lease in list(self._held.get(front_end, ())):
            self.give_back(front_end, lease)
        self._held.pop(front_end, None)


def refused(who: str, sessions: int, limit: int) -> str:
    """Why no further session is granted, with the numbers, or ""; a limit of 0 is none."""
    return f"{who} has {sessions} of {limit} sessions" if 0 < limit <= sessions else ""

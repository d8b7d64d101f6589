"""The order of waiting connections, with a fake clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.supervisor.connection_bounds import ConnectionLimits
from antiphon.supervisor.connection_queue import (
    MAX_WAITING,
    ConnectionQueue,
    WaitingConnections,
)

FAR, NEAR, OWN = "198.51.100.7", "203.0.113.9", "127.0.0.1"
HEAD_S: Final = 15.0
"""After which a connection without a whole head is closed."""

STEP_S: Final = 0.005
FLOOD: Final = 10_000


@dataclass
class Server:
    """Accepts and serves as the dispatcher does, every 5 ms."""

    queue: ConnectionQueue[int]
    now_s: float = 0.0
    kernel: list[tuple[int, str, bool]] = field(default_factory=list)
    closing: list[tuple[float, str]] = field(default_factory=list)
    served_s: dict[int, float] = field(default_factory=dict)
    turned_away: set[int] = field(default_factory=set)

    def step(self) -> None:
        self.now_s += STEP_S
        accepted = 0
        while accepted < len(self.kernel) and self.queue.bounds.accept_wait_s(self.now_s) == 0.0:
            self._accept(*self.kernel[accepted])
            accepted += 1
        del self.kernel[:accepted]
        while (taken := self.queue.take(self.now_s)) is not None:
            self.served_s[taken[0]] = self.now_s
            self.closing.append((self.now_s + HEAD_S, taken[1]))
        while self.closing and self.closing[0][0] <= self.now_s:
            self.queue.bounds.closed([self.closing.pop(0)[1]])

    def _accept(self, number: int, address: str, speaks: bool) -> None:
        if self.queue.bounds.let_in(address):
            self.turned_away.add(number)
        elif (least := self.queue.add(number, address)) is not None:
            self.turned_away.add(least[0])
        if speaks:
            assert number in self.queue.waiting
            self.queue.waiting.has_spoken(number)


@settings(max_examples=6, deadline=None)
@given(
    limits=st.sampled_from([ConnectionLimits(), ConnectionLimits(connections=768)]),
    addresses=st.sampled_from([(FAR, NEAR), ("", NEAR), (OWN, OWN)]),
    lasts_s=st.sampled_from([2.5, 10.0]),
    comes_s=st.floats(0.0, 12.0),
)
def test_ten_thousand_half_open_connections_delay_no_newcomer(
    limits: ConnectionLimits, addresses: tuple[str, str], lasts_s: float, comes_s: float
) -> None:
    """Each of them may have an address of its own. The newcomer, who has a request, waited for 5.1 s."""
    server, sent, (flood, own) = Server(ConnectionQueue[int](limits, 0.0)), 0, addresses
    while server.now_s < comes_s:
        until = min(FLOOD, round(FLOOD * server.now_s / lasts_s))
        server.kernel += [(it, flood or f"10.{it >> 8}.{it & 255}.1", False) for it in range(sent, until)]
        sent = until
        server.step()
    server.kernel.append((FLOOD, own, True))
    came_s = server.now_s
    while FLOOD not in server.served_s:
        server.step()
        assert server.now_s - came_s < 0.05
    assert len(server.queue.waiting) <= MAX_WAITING


def test_a_flood_with_requests_delays_a_newcomer_by_one_turn() -> None:
    """Newest and oldest alternate: nothing tells the newcomer from the flood."""
    server = Server(ConnectionQueue[int](ConnectionLimits(), 0.0))
    server.kernel = [(it, f"10.{it >> 8}.{it & 255}.1", True) for it in range(1500)]
    server.step()
    server.kernel.append((FLOOD, NEAR, True))
    while FLOOD not in server.served_s:
        server.step()
    assert server.now_s < 0.03
    for _ in range(round(12.0 / STEP_S)):
        server.step()
    assert len(server.queue.waiting) == 0
    assert len(server.served_s) + len(server.turned_away) == 1501  # none waits forever
    assert len(server.turned_away) == 1500 - MAX_WAITING


def test_the_address_with_the_fewest_is_next_and_the_one_with_the_most_gives_way() -> None:
    waiting = WaitingConnections[str]()
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        waiting.add(name, name[0])
    assert waiting.least() == "a1"
    assert waiting.next(may_be_silent=False) is None
    assert waiting.next(may_be_silent=True) == "c1"
    for name in ("a1", "a2", "b1"):
        waiting.has_spoken(name)
    assert (waiting.spoken, len(waiting)) == (3, 6)
    order = []
    while (taken := waiting.next(may_be_silent=True)) is not None:
        waiting.remove(taken)
        order.append(taken)
    assert order[0] == "b1"
    assert set(order[1:3]) == {"a1", "a2"}
    assert set(order[3:]) == {"a3", "b2", "c1"}
    assert (waiting.spoken, len(waiting)) == (0, 0)


def test_a_share_of_all_connections_is_for_those_that_have_sent_something() -> None:
    queue = ConnectionQueue[int](ConnectionLimits(connections=8), 0.0)
    for number in range(7):
        assert queue.bounds.let_in(OWN) == ""
        queue.add(number, OWN)
        queue.take(0.0)
    assert queue.bounds.served == 6
    assert queue.lacks_room == 0
    (waiting,) = set(queue.waiting)
    queue.waiting.has_spoken(waiting)
    assert queue.take(0.0) == (waiting, OWN)
    for number in (8, 9):
        queue.bounds.let_in(OWN)
        queue.add(number, OWN)
        queue.waiting.has_spoken(number)
        queue.take(0.0)
    assert (queue.bounds.served, queue.lacks_room) == (8, 1)
    queue.bounds.closed([OWN])
    assert queue.take(0.0) == (9, OWN)
    queue.add(10, OWN)
    queue.leave(10)
    assert len(queue.waiting) == 0

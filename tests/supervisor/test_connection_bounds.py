"""Connections of one address within the limit of all, with a fake clock."""

from __future__ import annotations

import pytest

from antiphon.supervisor.address import is_own
from antiphon.supervisor.connection_bounds import ACCEPT_COST, ConnectionBounds, ConnectionLimits
from antiphon.supervisor.messages import Take
from antiphon.supervisor.shared import Quota
from tests.support.held import largest_held

FAR, NEAR = "198.51.100.7", "203.0.113.9"


def opened(bounds: ConnectionBounds, address: str, count: int, now_s: float) -> int:
    """How many of so many connections are let in, without a wait for any."""
    assert bounds.accept_wait_s(now_s) == 0.0
    return sum(not bounds.let_in(address) for _ in range(count))


def test_an_address_opens_a_quarter_of_what_a_second_allows_and_the_rest_is_turned_away() -> None:
    bounds = ConnectionBounds(ConnectionLimits(new_per_s=200.0), 0.0)
    assert opened(bounds, FAR, 1000, 0.0) == 50
    assert bounds.let_in(FAR) == "more than 50 new connections a second"
    assert opened(bounds, FAR, 1000, 0.5) == 25


def test_others_are_let_in_at_once_beside_a_flood_of_one_address() -> None:
    """The flood takes its quarter of what is served; turning the rest away takes nothing from others."""
    bounds = ConnectionBounds(ConnectionLimits(new_per_s=200.0), 0.0)
    let_in, waited_s = 0, 0.0
    for tick in range(1, 1001):  # ten seconds, each hundredth of which has 30 of the flood and one of another
        for _ in range(opened(bounds, FAR, 30, tick / 100)):
            bounds.serve()
        waited_s = max(waited_s, bounds.serve_wait_s(tick / 100), bounds.accept_wait_s(tick / 100))
        let_in += not bounds.let_in(NEAR) if tick % 10 == 0 else 0
    assert let_in == 100
    assert waited_s == 0.0


def test_no_more_are_accepted_than_can_be_turned_away() -> None:
    bounds = ConnectionBounds(ConnectionLimits(new_per_s=200.0), 0.0)
    accepted = 0
    while bounds.accept_wait_s(1.0) == 0.0:
        bounds.let_in(FAR)
        accepted += 1
    assert accepted == 200 / ACCEPT_COST
    assert bounds.accept_wait_s(1.0) == pytest.approx(ACCEPT_COST / 200)


def test_an_address_has_a_quarter_of_all_connections() -> None:
    bounds = ConnectionBounds(ConnectionLimits(connections=40, new_per_s=1000.0), 0.0)
    assert opened(bounds, FAR, 40, 0.0) == 10
    assert bounds.let_in(FAR) == "10 of 10 connections"
    bounds.forget([FAR])
    assert bounds.let_in(FAR) == ""
    assert opened(bounds, NEAR, 40, 0.0) == 10


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.1.1", "::/64"])
def test_this_machine_itself_has_any_number_unless_the_operator_says_how_many(own: str) -> None:
    assert opened(ConnectionBounds(ConnectionLimits(connections=40), 0.0), own, 40, 0.0) == 40
    assert opened(ConnectionBounds(ConnectionLimits(connections_per_address=2), 0.0), own, 40, 0.0) == 2
    assert opened(ConnectionBounds(ConnectionLimits(new_per_s_per_address=3.0), 0.0), own, 40, 0.0) == 3
    assert opened(ConnectionBounds(ConnectionLimits(), 0.0), "", 200, 0.0) == 200  # a trusted proxy's


def test_addresses_that_came_once_are_forgotten() -> None:
    bounds = ConnectionBounds(ConnectionLimits(), 0.0)
    for number in range(1000):
        now_s = number / 100
        bounds.accept_wait_s(now_s)
        address = f"10.0.{number // 256}.{number % 256}"
        assert bounds.let_in(address) == ""
        bounds.forget([address])
    assert largest_held(bounds) < 250


def test_a_connection_that_has_closed_makes_room_for_another() -> None:
    bounds = ConnectionBounds(ConnectionLimits(connections=2, connections_per_address=2), 0.0)
    assert opened(bounds, FAR, 8, 0.0) == 2
    for _ in range(2):
        assert not bounds.is_full
        bounds.serve()
    assert bounds.is_full
    bounds.closed([FAR, FAR])
    assert (bounds.served, bounds.is_full) == (0, False)
    assert opened(bounds, FAR, 8, 10.0) == 2


def test_sessions_of_a_front_end_that_has_ended_are_free_again() -> None:
    leases = Quota()
    assert leases.take(0, Take(1, "key", 1, FAR, 1)) == ""
    assert leases.take(1, Take(1, "key", 1, FAR, 1)) == "the key 'key' has 1 of 1 sessions"
    leases.gone(0)
    assert leases.take(1, Take(1, "key", 1, FAR, 1)) == ""


def test_the_loopback_address_of_ipv6_is_this_machine_by_its_network_too() -> None:
    assert [is_own(it) for it in ("::/64", "::1", "127.0.0.1", "", "2001:db8::/64", FAR)] == [True] * 4 + [
        False
    ] * 2


def test_recordings_are_counted_beside_sessions_over_all_front_ends() -> None:
    leases = Quota()
    assert leases.take(0, Take(1, "", 0, FAR, 1)) == ""
    assert leases.take(0, Take(2, "", 0, FAR, 1, "recordings")) == ""
    assert leases.take(1, Take(1, "", 0, FAR, 1, "recordings")) == f"your address {FAR} has 1 of 1 recordings"
    leases.give_back(0, 2)
    assert leases.take(1, Take(1, "", 0, FAR, 1, "recordings")) == ""
    leases.gone(1)
    assert leases.take(0, Take(3, "", 0, FAR, 1)) == f"your address {FAR} has 1 of 1 sessions"

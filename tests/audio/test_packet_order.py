"""The order of RTP packets: nothing twice, nothing out of order, each loss reported once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.packet_order import DEPTH, MAX_GAP, PacketOrder


def ordered(numbers: Sequence[int], start: int = 0) -> list[int | None]:
    order = PacketOrder()
    found: list[int | None] = []
    for number in numbers:
        packets = order.add((start + number) & 0xFFFF, str(number).encode())
        found += [None if packet is None else int(packet) for packet in packets]
    return found


@given(st.integers(0, 0xFFFF), st.data())
def test_packets_that_are_delayed_by_few_others_and_repeated_come_once_and_in_order(
    start: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(DEPTH + 1, 40))
    delays = data.draw(st.lists(st.integers(0, DEPTH - 1), min_size=count, max_size=count))
    delays[0] = 0
    sent = sorted(range(count), key=lambda number: number + delays[number] + 0.5 * (delays[number] > 0))
    again = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
    numbers = sent + [sent[it] for it in again]
    assert ordered(numbers, start) == list(range(count))


@given(st.integers(0, 0xFFFF), st.sets(st.integers(1, 60), max_size=15))
def test_each_lost_packet_is_reported_once_in_its_place(start: int, lost: set[int]) -> None:
    came = [number for number in range(61 + DEPTH) if number not in lost]
    expected = [None if number in lost else number for number in range(61 + DEPTH)]
    assert ordered(came, start) == expected


def test_after_a_gap_of_more_than_a_second_the_stream_begins_again() -> None:
    assert ordered([0, 1, 2 + MAX_GAP, 3 + MAX_GAP]) == [0, 1, 2 + MAX_GAP, 3 + MAX_GAP]
    assert ordered([0, 2, 900, 901]) == [0, 2, 900, 901]
    assert ordered([500, 501, 100, 101]) == [500, 501, 100, 101]  # a sender that began anew


def test_a_packet_that_comes_after_it_was_lost_is_dropped() -> None:
    assert ordered([0, 2, 3, 4, 1, 5]) == [0, None, 2, 3, 4, 5]

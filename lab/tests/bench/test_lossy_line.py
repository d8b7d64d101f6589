"""The lossy line keeps the order and loses its share; playback counts pauses, and answers count in order."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lab.bench.lossy_calls import PLAYOUT_S, answered, pauses_by_place, pauses_in_order
from lab.bench.lossy_line import Direction

LENGTH_S = 0.02
NUMBERS = range(400)


def test_a_direction_loses_a_share_and_keeps_the_order() -> None:
    due: list[tuple[float, Callable[[], None]]] = []
    loop = SimpleNamespace(time=lambda: 0.0, call_at=lambda at_s, give: due.append((at_s, give)))
    with ExitStack() as stack:
        (into, source), (target, out) = (
            socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)
        )
        for end in (into, source, target, out):
            stack.enter_context(end).setblocking(False)
        line = Direction(
            source.fileno(), target.fileno(), 0.25, 0.02, random.Random(1), loop=cast("Any", loop)
        )
        for number in NUMBERS:
            into.send(number.to_bytes(2, "big"))
            line.take()
        received = []
        for _, give in sorted(due, key=itemgetter(0)):
            give()
            received.append(int.from_bytes(out.recv(9), "big"))
    assert received == sorted(received)
    assert max(at_s for at_s, _ in due) <= 0.02
    assert line.passed == len(received)
    assert line.passed + line.lost == len(NUMBERS)
    assert line.lost == pytest.approx(100, abs=25)


def test_pauses_of_playback_in_order_delay_what_follows() -> None:
    on_time = [(number * LENGTH_S, number * LENGTH_S, LENGTH_S) for number in range(50)]
    assert pauses_in_order(on_time) == []
    late = [(at_s + 0.3 * (place_s >= 0.4), place_s, length_s) for at_s, place_s, length_s in on_time]
    assert pauses_in_order(late) == [pytest.approx(0.3)]  # 0.14 s of waiting, and the buffer again
    assert pauses_in_order(late[:1]) == []


def test_pauses_by_place_are_the_lost_and_the_late_packets() -> None:
    on_time = [(number * LENGTH_S, number * LENGTH_S, LENGTH_S) for number in range(50)]
    assert pauses_by_place(on_time) == []
    lost = [it for number, it in enumerate(on_time) if number not in (5, 9, 10)]
    assert pauses_by_place(lost) == [pytest.approx(LENGTH_S), pytest.approx(2 * LENGTH_S)]
    late = [
        (at_s + (PLAYOUT_S + 0.01) * (number == 7), place_s, length_s)
        for number, (at_s, place_s, length_s) in enumerate(lost)
    ]
    assert sum(pauses_by_place(late)) == pytest.approx(4 * LENGTH_S)


def test_answers_count_in_order() -> None:
    assert answered(" snow is\nwhite  my name is robin", ["snow is white", "my name is robin"]) == 2
    assert answered("my name is robin snow is white", ["snow is white", "my name is robin"]) == 1

"""Calls received from another worker as bytes: refusals and their effects."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.engine.call_state import FACTS, MAX_HEADER_BYTES, pack, unpack_call
from antiphon.errors import HandOverError, ServerFullError, UnsupportedError
from antiphon.ipc.values import SessionState
from tests.engine.bench import Bench, heard
from tests.engine.resumed import armed, claim, resume
from tests.engine.workers import IDENTITY, PATIENCE_S, Worker, moved, two


def test_a_call_that_is_not_read_when_the_engine_stops_is_refused() -> None:
    b = Worker("b")
    is_reading, may_read = threading.Event(), threading.Event()

    def slowly() -> bytes:
        is_reading.set()
        assert may_read.wait(PATIENCE_S)
        return b""

    b.engine.take_call(slowly)
    assert is_reading.wait(PATIENCE_S)
    waiting = b.engine.take_call(lambda: b"")
    b.engine.stop(0.0)
    with pytest.raises(HandOverError, match="this worker is shutting down, too"):
        waiting.result(0)
    may_read.set()


def spoilt(data: bytes, part: str, name: str, place: Any, value: float, *, is_time: bool = False) -> bytes:
    """A call of which one number is another."""
    state = unpack_call(data, IDENTITY)
    arrays = {key: array.copy() for key, array in getattr(state, part).items()}
    target = arrays[name].view(np.float64) if is_time else arrays[name]
    target[place] = value
    changed: dict[str, Any] = {part: arrays}
    return replace(state, **changed).pack(IDENTITY)


@pytest.mark.parametrize(
    ("part", "name", "place", "value", "is_time", "words"),
    [
        ("lease", "caller", 1, -1, False, "a call's counters have a number out of range: 0 to"),
        ("lease", "engine", 3, 2**62, False, "a call's counters have a number out of range: 0 to"),
        ("lease", "engine", -1, math.nan, True, "a call's times have a number out of range"),
        ("lease", "in_marks", (-1, 0), -5, False, "a call's frames have a number out of range"),
        ("lease", "in_marks", (-1, 1), math.inf, True, "a call's times of frames have a number"),
        ("lease", "out_marks", (0, 0), -1, False, "a call's frames of replies have a number"),
        ("lease", "out_marks", (0, 2), 10**6, False, "a call's tokens have a number out of range: -1 to"),
        ("lease", "out_marks", (0, 6), math.nan, True, "a call's times of replies have a number"),
        ("lease", "out_pcm", (0, 0), math.nan, False, "a call's out_pcm have a number out of range"),
        ("row", "row", 3, math.nan, False, "the row's row has a number out of range: -1e"),
    ],
)
def test_numbers_out_of_range_are_refused_and_harm_no_other_call(
    part: str, name: str, place: Any, value: float, is_time: bool, words: str
) -> None:
    a, b = two()
    moved(a, armed(a))
    c = Worker("c")
    talking = c.submit()
    with pytest.raises(UnsupportedError, match=words):
        c.taken(spoilt(a.posted[0], part, name, place, value, is_time=is_time))
    c.tick()
    assert c.engine.health().active == 1
    c.push(talking, 3)
    c.ticks()
    assert heard(talking.take()) == [3]
    assert resume(b, claim()).state is SessionState.ACTIVE  # the call as it was


def test_messages_that_are_not_those_before_the_next_are_refused() -> None:
    a, _b = two()
    first = armed(a)
    first.note(((0, b"a"), (1, b"b")), 1)
    moved(a, first)
    state = unpack_call(a.posted[0], IDENTITY)
    facts = replace(state.facts, notes=((0, b"a"), (5, b"b")))
    with pytest.raises(UnsupportedError, match=r"are no facts of a call: messages .* are not those before 2"):
        Worker("c").taken(replace(state, facts=facts).pack(IDENTITY))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ("[" * 100_000, "100000 characters are no facts of a call: Expected `object`, got `array`"),
        ('{"call": 1}', "11 characters are no facts of a call: Expected `str`, got `int`"),
    ],
)
def test_facts_of_another_form_are_refused(facts: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        unpack_call(pack({}, IDENTITY, {FACTS: facts}), IDENTITY)


def test_a_call_without_a_name_is_refused() -> None:
    a, _b = two()
    moved(a, armed(a))
    state = unpack_call(a.posted[0], IDENTITY)
    with pytest.raises(UnsupportedError, match="are no facts of a call: Expected `str` of length >= 1"):
        unpack_call(replace(state, facts=replace(state.facts, call="")).pack(IDENTITY), IDENTITY)


def test_an_engine_without_a_row_refuses_and_a_call_comes_once() -> None:
    a, b = two(slots=1)
    first = armed(a)
    moved(a, first)
    with pytest.raises(ServerFullError, match="the only row is in use"):
        b.taken(a.posted[0])
    resume(b, claim()).close()
    with pytest.raises(HandOverError, match="this worker has this call already, or had it"):
        b.taken(a.posted[0])
    assert b.engine.health().active == 0


def test_an_engine_without_a_secret_takes_no_call() -> None:
    future: Future[None] = Bench().engine.take_call(lambda: b"")
    with pytest.raises(HandOverError, match="calls are not accepted here: there is no hand_over_secret"):
        future.result()


def test_an_arrival_whose_sender_waits_no_more_harms_no_other_call() -> None:
    a, _b = two()
    moved(a, armed(a))
    c = Worker("c")
    talking = c.submit()
    arriving = c.engine.take_call(lambda: a.posted[0])
    deadline_s = time.monotonic() + PATIENCE_S
    while c.engine.health().active < 2:  # it has a row, and not its state yet
        assert time.monotonic() < deadline_s
        c.calls.loop.run()
        time.sleep(0.001)
    arriving.cancel()
    c.push(talking, 3)
    c.ticks()
    assert heard(talking.take()) == [3]
    assert not c.losses


def stated(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\x02\0\0\0\0\0\0\0{}",
        stated(b"[" * 100_000),
        stated(b" " * (MAX_HEADER_BYTES + 1)),
    ],
    ids=["nothing", "no header", "no model", "nested", "a long header"],
)
def test_bytes_that_are_no_call_are_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedError, match="bytes are no state of a row"):
        Worker("a").taken(data)

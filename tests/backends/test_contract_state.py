"""The contract of every backend: rows are independent, and their state is correct."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import UnsupportedError
from antiphon.models.sampling import SamplingParameters
from tests.backends.contract import (
    GREEDY,
    SAMPLED,
    SLOTS,
    Driver,
    Reply,
    Subject,
    assert_same,
    voice,
)
from tests.backends.subjects import packed_too

FRAMES = 8
LOUD = 50.0


@packed_too
def test_reset_equals_fresh(subject: Subject, driver: Driver) -> None:
    fresh = Driver(subject.make(SLOTS), subject.comparable)
    frames = voice(3, FRAMES, driver.info)
    driver.run(2, voice(4, FRAMES, driver.info, level=LOUD))
    not_reset = [fresh.tick({2: frame}, fixed=True)[2] for frame in frames]
    assert_same(driver.run(2, frames, fixed=True), not_reset)
    fresh.backend.close()


def test_reset_of_a_row_leaves_the_others(driver: Driver) -> None:
    frames = voice(5, FRAMES, driver.info)
    wanted = driver.run(0, frames, fixed=True)
    got = [
        driver.tick({0: frame, 1: frame, 3: frame}, reset={0, 1, 3} if index == 0 else {1, 3}, fixed=True)[0]
        for index, frame in enumerate(frames)
    ]
    assert_same(got, wanted)


def test_a_row_that_is_not_named_does_not_move(driver: Driver) -> None:
    """Whatever others hear, in ticks of it alone and of all."""
    frames = voice(6, FRAMES, driver.info)
    wanted = driver.run(1, frames, fixed=True)
    levels = itertools.cycle((np.nan, LOUD, 0.0))
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        got.append(driver.tick({1: frame}, reset={1} if index == 0 else (), fixed=True)[1])
        for pause in range(index % 3):
            other = np.full_like(frame, next(levels))
            with np.errstate(all="ignore"):
                driver.tick({3: other} if index % 2 else {0: other, 4: other}, fixed=pause == 0)
    assert_same(got, wanted)


@packed_too
def test_the_order_and_the_others_change_nothing_in_a_fixed_batch(driver: Driver) -> None:
    frames, loud = voice(30, FRAMES, driver.info), voice(31, FRAMES, driver.info, level=LOUD)
    wanted = driver.run(3, frames, fixed=True)
    random = np.random.default_rng(5)
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        driver.is_backward = index % 2 == 1
        others = {int(row): loud[index] for row in random.permutation([0, 1, 2, 4])[: index % 4]}
        got.append(driver.tick({3: frame, **others}, reset={3} if index == 0 else (), fixed=True)[3])
    assert_same(got, wanted)


@packed_too
def test_poison_dies_with_its_session(driver: Driver) -> None:
    info = driver.info
    frames = voice(7, FRAMES, info)
    wanted = {row: driver.run(row, frames, fixed=True) for row in (0, 1)}
    for poison in (np.nan, np.inf, 1e30):
        bad = np.full(info.spec.frame_samples, poison, dtype=np.float32)
        with np.errstate(all="ignore"):
            neighbour = [
                driver.tick({0: bad, 1: frame}, reset={0, 1} if index == 0 else (), fixed=True)[1]
                for index, frame in enumerate(frames)
            ]
        assert_same(neighbour, wanted[1])
        assert_same(driver.run(0, frames, fixed=True), wanted[0])


def test_a_loud_neighbour_moves_nothing(driver: Driver) -> None:
    """Each neighbour begins in a tick of its own: texts that begin at once are read over several ticks."""
    info = driver.info
    frames, loud = voice(8, FRAMES, info), voice(9, FRAMES, info, level=LOUD)
    wanted = driver.run(2, frames, fixed=True)
    order = [2, *(row for row in range(SLOTS) if row != 2)]
    got = [
        driver.tick(
            {row: frame if row == 2 else shout for row in order[: number + 1]},
            reset=order[number : number + 1],
            fixed=True,
        )[2]
        for number, (frame, shout) in enumerate(zip(frames, loud, strict=True))
    ]
    assert_same(got, wanted)


@pytest.mark.parametrize(("seed", "parameters"), [(0, GREEDY), (2, SAMPLED)])
def test_a_batch_equals_its_sessions_alone(
    subject: Subject, driver: Driver, seed: int, parameters: SamplingParameters
) -> None:
    """Sessions join at random ticks, on random rows, and have random gaps; rows are used again."""
    info = driver.info
    random = np.random.default_rng(seed)
    sessions = {number: voice(100 * seed + number, FRAMES, info) for number in range(SLOTS + 2)}
    for row in range(SLOTS):
        driver.backend.set_parameters(row, parameters)
    wanted = {number: driver.run(0, frames, fixed=True) for number, frames in sessions.items()}
    got: dict[int, list[Reply]] = {number: [] for number in sessions}
    waiting = list(sessions)
    on_row: dict[int, int] = {}
    while waiting or on_row:
        if waiting and len(on_row) < SLOTS and random.random() < 0.5:
            row = int(random.choice([row for row in range(SLOTS) if row not in on_row]))
            on_row[row] = waiting.pop(0)
        ready = {row: number for row, number in on_row.items() if random.random() < 0.7}
        if not ready:
            continue
        frames = {row: sessions[number][len(got[number])] for row, number in ready.items()}
        replies = driver.tick(frames, reset={row for row, number in ready.items() if not got[number]})
        for row, number in ready.items():
            got[number].append(replies[row])
            if len(got[number]) == FRAMES:
                del on_row[row]
    for number in sessions:
        assert_same(got[number], wanted[number], subject.pcm_tolerance)


def test_who_else_is_ready_changes_next_to_nothing(subject: Subject, driver: Driver) -> None:
    """One session, beside other rows in every tick, named in any order, in fixed ticks and others."""
    frames, other = voice(10, FRAMES, driver.info), voice(11, FRAMES, driver.info)
    wanted = driver.run(2, frames, fixed=True)
    beside: list[set[int]] = [set(), {0}, {0, 1}, {4}, {0, 4}, {0, 1, 3, 4}, {1}, {3}]
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        driver.is_backward = index % 3 == 1
        named = {2: frame} | dict.fromkeys(beside[index % len(beside)], other[index])
        reset = named if index == 0 else ()
        got.append(driver.tick(named, reset=reset, fixed=index % 5 == 4)[2])
    assert_same(got, wanted, subject.pcm_tolerance)


def test_a_plan_has_room_for_every_row(driver: Driver) -> None:
    for rows in ([0], [SLOTS - 1], [0, 2, 4], [3, 1], list(range(SLOTS))):
        named = np.array(rows, np.int32)
        assert len(rows) <= driver.backend.plan(named) <= SLOTS
        assert driver.backend.plan(named, is_fixed=True) == SLOTS


@packed_too
def test_state_is_right_past_the_ring_wrap(subject: Subject, driver: Driver) -> None:
    """A session long enough to fill its windows twice, with a neighbour that began elsewhere."""
    info = driver.info
    frames, other = voice(12, subject.wrap_frames, info), voice(13, subject.wrap_frames, info)
    for row in range(SLOTS):
        driver.backend.set_parameters(row, GREEDY)
    wanted = driver.run(0, frames, fixed=True)
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        both = {3: frame, 1: other[index]} if index % 5 != 2 else {3: frame}
        reset = {1, 3} if index == 0 else {1} if index == subject.wrap_frames // 15 * 5 else ()
        got.append(driver.tick(both, reset=reset, fixed=True)[3])
    assert_same(got, wanted, subject.pcm_tolerance)


@packed_too
def test_a_snapshot_continues_bit_identically_on_any_row(subject: Subject, driver: Driver) -> None:
    frames = voice(18, 2 * FRAMES, driver.info)
    driver.run(1, frames[:FRAMES], fixed=True)
    taken = driver.backend.snapshot(1)
    wanted = [driver.tick({1: frame}, fixed=True)[1] for frame in frames[FRAMES:]]
    assert taken.bytes > 0
    for row in (1, 4):
        driver.run(row, voice(19, 3, driver.info), fixed=True)
        driver.backend.restore(row, taken)
        got = [driver.tick({row: frame}, fixed=True)[row] for frame in frames[FRAMES:]]
        assert_same(got, wanted, 0.0 if row == 1 else subject.pcm_tolerance)


@packed_too
def test_a_snapshot_past_the_wrap_continues_bit_identically(subject: Subject, driver: Driver) -> None:
    frames = voice(32, subject.wrap_frames + FRAMES, driver.info)
    driver.run(1, frames[: subject.wrap_frames], fixed=True)
    taken = driver.backend.snapshot(1)
    wanted = [driver.tick({1: frame}, fixed=True)[1] for frame in frames[subject.wrap_frames :]]
    driver.run(1, voice(33, FRAMES, driver.info), fixed=True)
    driver.backend.restore(1, taken)
    assert_same([driver.tick({1: frame}, fixed=True)[1] for frame in frames[subject.wrap_frames :]], wanted)


def test_a_snapshot_of_a_larger_or_smaller_model_is_refused(driver: Driver) -> None:
    backend = driver.backend
    kept = backend.snapshot(0)
    name = min(kept.tensors)
    more = {**kept.tensors, "more": kept.tensors[name]}
    fewer = {other: tensor for other, tensor in kept.tensors.items() if other != name}
    for tensors in (more, fewer):
        with pytest.raises(UnsupportedError, match=r"snapshot"):
            backend.restore(1, replace(kept, tensors=tensors))

"""The contract of every backend: rows do not touch each other, and their state is right, always."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.backends.base import RowSnapshot
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

FRAMES = 8
LOUD = 50.0


def test_reset_equals_fresh(subject: Subject, driver: Driver) -> None:
    fresh = Driver(subject.make(SLOTS), subject.comparable)
    frames = voice(3, FRAMES, driver.info)
    driver.run(2, voice(4, FRAMES, driver.info, level=LOUD))
    not_reset = [fresh.tick({2: frame}, rows=SLOTS)[2] for frame in frames]
    assert_same(driver.run(2, frames, rows=SLOTS), not_reset)
    fresh.backend.close()


def test_reset_of_a_row_leaves_the_others(driver: Driver) -> None:
    frames = voice(5, FRAMES, driver.info)
    wanted = driver.run(0, frames, rows=SLOTS)
    got = [
        driver.tick({0: frame}, reset={0, 1} if index == 0 else {1, 3}, rows=SLOTS)[0]
        for index, frame in enumerate(frames)
    ]
    assert_same(got, wanted)


def test_a_reset_row_may_stay_idle(driver: Driver) -> None:
    frames = voice(5, FRAMES, driver.info)
    wanted = driver.run(0, frames, rows=SLOTS)
    driver.run(0, voice(6, 3, driver.info))
    driver.tick({}, reset={0}, rows=SLOTS)
    assert_same([driver.tick({0: frame}, rows=SLOTS)[0] for frame in frames], wanted)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, LOUD, 0.0])
def test_a_masked_row_does_not_move_whatever_it_holds(driver: Driver, garbage: float) -> None:
    frames = voice(6, FRAMES, driver.info)
    wanted = driver.run(1, frames, rows=SLOTS)
    driver.garbage = garbage
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        got.append(driver.tick({1: frame}, reset={1} if index == 0 else (), rows=SLOTS)[1])
        for _ in range(index % 3):
            driver.tick({3: frame} if index % 2 else {}, rows=SLOTS)
    assert_same(got, wanted)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_poison_dies_with_its_session(driver: Driver, poison: float) -> None:
    info = driver.info
    frames = voice(7, FRAMES, info)
    wanted = {row: driver.run(row, frames, rows=SLOTS) for row in (0, 1)}
    bad = np.full(info.spec.frame_samples, poison, dtype=np.float32)
    with np.errstate(all="ignore"):
        neighbour = [
            driver.tick({0: bad, 1: frame}, reset={0, 1} if index == 0 else (), rows=SLOTS)[1]
            for index, frame in enumerate(frames)
        ]
    assert_same(neighbour, wanted[1])
    assert_same(driver.run(0, frames, rows=SLOTS), wanted[0])


def test_a_loud_neighbour_moves_nothing(driver: Driver) -> None:
    info = driver.info
    frames, loud = voice(8, FRAMES, info), voice(9, FRAMES, info, level=LOUD)
    wanted = driver.run(2, frames, rows=SLOTS)
    got = [
        driver.tick(
            {row: frame if row == 2 else shout for row in range(SLOTS)}, reset=range(SLOTS) if first else ()
        )[2]
        for first, frame, shout in zip([True, *[False] * FRAMES], frames, loud, strict=False)
    ]
    assert_same(got, wanted)


@pytest.mark.parametrize(("seed", "parameters"), [(0, GREEDY), (2, SAMPLED)])
def test_a_batch_equals_its_sessions_alone(
    subject: Subject, driver: Driver, seed: int, parameters: SamplingParameters
) -> None:
    """Sessions join at random ticks, on random rows, and have random gaps; rows are used again."""
    info = driver.info
    random = np.random.default_rng(seed)
    sessions = {number: voice(100 * seed + number, FRAMES, info) for number in range(2 * SLOTS)}
    for row in range(SLOTS):
        driver.backend.set_parameters(row, parameters)
    wanted = {number: driver.run(0, frames, rows=SLOTS) for number, frames in sessions.items()}
    got: dict[int, list[Reply]] = {number: [] for number in sessions}
    waiting = list(sessions)
    on_row: dict[int, int] = {}
    while waiting or on_row:
        if waiting and len(on_row) < SLOTS and random.random() < 0.5:
            row = int(random.choice([row for row in range(SLOTS) if row not in on_row]))
            on_row[row] = waiting.pop(0)
        ready = {row: number for row, number in on_row.items() if random.random() < 0.7}
        frames = {row: sessions[number][len(got[number])] for row, number in ready.items()}
        replies = driver.tick(frames, reset={row for row, number in ready.items() if not got[number]})
        for row, number in ready.items():
            got[number].append(replies[row])
            if len(got[number]) == FRAMES:
                del on_row[row]
    for number in sessions:
        assert_same(got[number], wanted[number], subject.pcm_tolerance)


def test_the_bucket_changes_nothing(subject: Subject, driver: Driver) -> None:
    """One session alone in each bucket, and one that changes bucket at every tick."""
    buckets = driver.info.buckets
    frames = voice(10, FRAMES, driver.info)
    wanted = driver.run(0, frames, rows=buckets[-1])
    for rows in buckets:
        assert_same(driver.run(0, frames, rows=rows), wanted, subject.pcm_tolerance)
    changing = [
        driver.tick({0: frame}, reset={0} if index == 0 else (), rows=buckets[index % len(buckets)])[0]
        for index, frame in enumerate(frames)
    ]
    assert_same(changing, wanted, subject.pcm_tolerance)


def test_rows_beyond_the_bucket_keep_their_state(subject: Subject, driver: Driver) -> None:
    last = SLOTS - 1
    frames = voice(11, FRAMES, driver.info)
    wanted = driver.run(last, frames)
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        got.append(driver.tick({last: frame}, reset={last} if index == 0 else ())[last])
        driver.tick({0: frame}, reset={0} if index == 2 else ())
    assert_same(got, wanted)


def test_state_is_right_past_the_ring_wrap(subject: Subject, driver: Driver) -> None:
    """A session long enough to fill its windows twice, with a neighbour that began elsewhere."""
    info = driver.info
    frames, other = voice(12, subject.wrap_frames, info), voice(13, subject.wrap_frames, info)
    for row in range(SLOTS):
        driver.backend.set_parameters(row, GREEDY)
    wanted = driver.run(0, frames, rows=SLOTS)
    got: list[Reply] = []
    for index, frame in enumerate(frames):
        both = {3: frame, 1: other[index]} if index % 5 else {3: frame}
        reset = {1, 3} if index == 0 else {1} if index == subject.wrap_frames // 3 else ()
        got.append(driver.tick(both, reset=reset, rows=SLOTS)[3])
    assert_same(got, wanted, subject.pcm_tolerance)


def test_a_snapshot_continues_bit_identically_on_any_row(subject: Subject, driver: Driver) -> None:
    if not driver.info.can_snapshot:
        with pytest.raises(UnsupportedError):
            driver.backend.snapshot(0)
        with pytest.raises(UnsupportedError):
            driver.backend.restore(0, RowSnapshot(driver.info.name, {}, 0))
        return
    frames = voice(18, 2 * FRAMES, driver.info)
    driver.run(1, frames[:FRAMES], rows=SLOTS)
    taken = driver.backend.snapshot(1)
    wanted = [driver.tick({1: frame}, rows=SLOTS)[1] for frame in frames[FRAMES:]]
    assert taken.bytes > 0
    for row, reset in ((1, ()), (4, (4,))):
        driver.run(row, voice(19, 3, driver.info), rows=SLOTS)
        driver.tick({}, reset=reset, rows=SLOTS)
        driver.backend.restore(row, taken)
        got = [driver.tick({row: frame}, rows=SLOTS)[row] for frame in frames[FRAMES:]]
        assert_same(got, wanted, 0.0 if row == 1 else subject.pcm_tolerance)


def test_move_takes_state_and_parameters_along(subject: Subject, driver: Driver) -> None:
    if not driver.info.can_snapshot:
        with pytest.raises(UnsupportedError):
            driver.backend.move(0, 1)
        return
    frames = voice(20, 2 * FRAMES, driver.info)
    driver.backend.set_parameters(4, SamplingParameters(text_seed=11, audio_seed=12))
    whole = driver.run(4, frames, rows=SLOTS)
    driver.run(4, frames[:FRAMES], rows=SLOTS)
    driver.run(0, voice(21, 3, driver.info), rows=SLOTS)
    driver.backend.move(4, 0)
    driver.tick({4: frames[0]}, reset={4}, rows=SLOTS)
    moved = [driver.tick({0: frame}, rows=SLOTS)[0] for frame in frames[FRAMES:]]
    assert_same(moved, whole[FRAMES:], subject.pcm_tolerance)

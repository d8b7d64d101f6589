"""Rings behave like lists, and report dropped data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.ipc.rings import NOT_PADDING, Arena, InputRings, InputWriter, OutputRings, RingReplies
from antiphon.ipc.values import Shape

LEASE = 1
"""In the middle of three: what belongs to its neighbours shows."""


def input_rings(leases: int, bound: int, frame_samples: int) -> InputRings:
    return InputRings(Arena.ordinary(Shape(bound, 1, frame_samples, 0), leases))


def output_rings(leases: int, bound: int, frame_samples: int, heads: int = 1) -> OutputRings:
    return OutputRings(Arena.ordinary(Shape(1, bound, 1, frame_samples, heads), leases))


@dataclass
class ListInput:
    """What :class:`InputWriter` promises, kept in lists that forget nothing."""

    frame_samples: int
    bound: int
    frames: list[list[float]] = field(default_factory=lambda: [[]])  # the last one is not whole
    complete_s: list[float] = field(default_factory=list)
    last_s: float = 0.0
    waiting: list[int] = field(default_factory=list)  # physically: flushed ones too
    flushed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    def write(self, samples: list[float], now_s: float) -> None:
        self.last_s = now_s
        begun = len(self.frames) - 1
        before = bool(self.frames[-1])
        for sample in samples:
            self.frames[-1].append(sample)
            if len(self.frames[-1]) == self.frame_samples:
                self.frames.append([])
                self.complete_s.append(now_s)
        touched = len(self.frames) - 1 - begun + bool(self.frames[-1])
        new = list(range(begun + before, begun + touched))
        kept_first = before and begun not in self.refused
        room = 2 * self.bound - len(self.waiting) - kept_first
        self.refused.update(new[: max(0, len(new) - room)])
        whole = range(begun, len(self.frames) - 1)
        self.waiting += [frame for frame in whole if frame not in self.refused]

    def finish(self) -> None:
        missing = -len(self.frames[-1]) % self.frame_samples
        if missing:
            self.write([0.0] * missing, self.last_s)

    def discard(self) -> int:
        self.flushed.update(self.waiting)
        self.frames[-1] = [0.0] * len(self.frames[-1])
        return len(self.frames) - 1

    @property
    def heard(self) -> list[int]:
        return [frame for frame in self.waiting if frame not in self.flushed]


Step = Callable[[InputRings, InputWriter, ListInput, float], None]


def writing(count: int) -> Step:
    def step(rings: InputRings, writer: InputWriter, model: ListInput, now_s: float) -> None:
        samples = np.arange(1, count + 1, dtype=np.float32) + np.float32(1000 * now_s)
        writer.write(samples, now_s)
        model.write(samples.tolist(), now_s)

    return step


def taking(count: int) -> Step:
    def step(rings: InputRings, writer: InputWriter, model: ListInput, now_s: float) -> None:
        """As the engine does: flushed ones are skipped, then some are read and let go."""
        rings.taken[LEASE] = max(rings.taken[LEASE], rings.discarded[LEASE])
        model.waiting = model.heard
        for frame in model.heard[:count]:
            slot = rings.taken[LEASE] % rings.capacity
            assert rings.frame[LEASE, slot] == frame
            assert rings.pcm[LEASE, slot].tolist() == model.frames[frame]
            assert rings.complete_s[LEASE, slot] == model.complete_s[frame]
            rings.taken[LEASE] += 1
            model.waiting.remove(frame)

    return step


def finishing(rings: InputRings, writer: InputWriter, model: ListInput, now_s: float) -> None:
    writer.finish()
    model.finish()


def discarding(rings: InputRings, writer: InputWriter, model: ListInput, now_s: float) -> None:
    assert writer.discard() == model.discard()


STEPS = st.lists(
    st.integers(0, 40).map(writing)
    | st.integers(1, 9).map(taking)
    | st.sampled_from([finishing, discarding]),
    max_size=30,
)


@given(st.integers(1, 7), st.integers(1, 4), STEPS)
def test_an_input_ring_does_what_lists_would(frame_samples: int, bound: int, steps: list[Step]) -> None:
    rings = input_rings(3, bound, frame_samples)
    writer, model = InputWriter(rings, LEASE), ListInput(frame_samples, bound)
    for now, step in enumerate(steps):
        step(rings, writer, model, float(now))
        assert writer.frames == len(model.frames) - 1
        assert writer.waiting == len(model.heard)
        assert writer.refused == len([frame for frame in model.refused if frame < writer.frames])
        is_skipping = len(model.frames) - 1 in model.refused
        assert writer.unfinished.tolist() == ([] if is_skipping else model.frames[-1])
        room = max(0, bound - len(model.heard)) * frame_samples
        assert writer.free_samples == max(0, room - len(model.frames[-1]))
    assert not rings.pcm[[0, 2]].any()
    assert not rings.written[[0, 2]].any()


def test_a_frame_is_complete_when_its_last_sample_came() -> None:
    rings = input_rings(2, 4, 4)
    writer = InputWriter(rings, LEASE)
    writer.write(np.ones(3, np.float32), 1.0)
    assert rings.written[LEASE] == 0, "the engine sees no part of a frame"
    writer.write(np.ones(6, np.float32), 2.0)
    writer.finish()
    assert rings.complete_s[LEASE, :3].tolist() == [2.0, 2.0, 2.0]
    assert rings.pcm[LEASE, 2].tolist() == [1, 0, 0, 0]


def test_a_full_ring_refuses_the_oldest_of_a_push_and_keeps_what_lies_in_it() -> None:
    rings = input_rings(2, 2, 1)
    writer = InputWriter(rings, LEASE)
    writer.write(np.arange(3, dtype=np.float32), 0.0)
    writer.write(np.arange(3, 9, dtype=np.float32), 0.0)
    assert rings.frame[LEASE].tolist() == [0, 1, 2, 8]
    assert rings.pcm[LEASE, :, 0].tolist() == [0, 1, 2, 8]
    assert (writer.frames, writer.refused) == (9, 5)


def test_frames_that_arrive_one_by_one_during_a_long_step_are_refused_after_twice_the_bound() -> None:
    rings = input_rings(2, 2, 1)
    writer = InputWriter(rings, LEASE)
    for number in range(9):
        writer.write(np.array([number], np.float32), 0.0)
    assert rings.pcm[LEASE, :, 0].tolist() == [0, 1, 2, 3]
    rings.taken[LEASE] = 3  # after the step the engine drops the oldest over its bound, and takes one
    writer.write(np.array([9], np.float32), 0.0)
    assert rings.frame[LEASE, :2].tolist() == [9, 1]
    assert (writer.frames, writer.refused, writer.waiting) == (10, 5, 2)


def test_a_frame_that_was_begun_without_a_slot_is_refused_whole_even_by_finish() -> None:
    rings = input_rings(2, 1, 4)
    writer = InputWriter(rings, LEASE)
    writer.write(np.ones(10, np.float32), 0.0)
    rings.taken[LEASE] = 2  # room again, but its beginning is gone
    writer.finish()
    assert (writer.frames, writer.refused, int(rings.written[LEASE])) == (3, 1, 2)


def replies(*frames: int, value: float = 0.0) -> RingReplies:
    count = len(frames)
    found = RingReplies.of(
        np.array(frames),
        NOT_PADDING,
        np.array(frames, np.int32),
        np.full((count, 2), value, np.float32),
        np.full((count, 1), value, np.float32),
    )
    found.times[:] = value
    return found


@given(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=25))
def test_an_output_ring_keeps_the_newest_and_counts_the_gap(bound: int, publishes: list[int]) -> None:
    """Each number is so many replies between two takes."""
    rings = output_rings(3, bound, 2)
    frame = given_up = 0
    for count in publishes:
        came = list(range(frame, frame + count))
        for number in came:
            given_up += rings.publish(np.array([LEASE]), replies(number, value=number))
            assert rings.waiting(LEASE) <= bound
        frame += count
        found, gap = rings.take(LEASE)
        assert found.frame.tolist() == came[-bound:]
        assert gap == max(0, count - bound)
        given_up -= gap
        assert found.pcm is not None
        for values in (found.pcm[:, 0], found.vad.ravel(), found.times[:, 3], found.token):
            assert values.tolist() == came[-bound:]
    assert given_up == 0, "what the engine counts as given up is what the reader finds missing"
    assert not rings.written[[0, 2]].any()


def test_a_reader_that_is_overtaken_drops_what_was_overwritten_and_counts_it() -> None:
    rings = output_rings(2, 2, 2)
    read = rings.read

    def read_slowly(*args: object) -> RingReplies:
        found = read(*args)  # type: ignore[arg-type]
        for number in range(2, 5):
            rings.publish(np.array([LEASE]), replies(number))
        return found

    for number in range(2):
        rings.publish(np.array([LEASE]), replies(number))
    rings.read = read_slowly  # type: ignore[method-assign, assignment]
    found, gap = rings.take(LEASE)
    assert found.frame.tolist() == [], "0 is overwritten by 4, and 1 may be, by one that has begun"
    assert gap == 2
    rings.read = read  # type: ignore[method-assign]
    found, gap = rings.take(LEASE)
    assert (found.frame.tolist(), gap) == ([3, 4], 1)


class Watched(np.ndarray):  # type: ignore[type-arg]
    """An array after whose first reading something happens."""

    after: Callable[[], object] | None = None

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, np.ndarray) and self.after is not None:
            act, self.after = self.after, None
            act()
        return found


def test_nothing_is_given_up_for_a_reader_that_takes_all_while_the_engine_publishes() -> None:
    rings = output_rings(2, 2, 2)
    for number in range(2):
        rings.publish(np.array([LEASE]), replies(number))
    watched = rings.taken.view(Watched)
    watched.after = lambda: rings.take(LEASE)
    rings.taken = watched
    assert rings.publish(np.array([LEASE]), replies(2)) == 0
    found, gap = rings.take(LEASE)
    assert (found.frame.tolist(), gap) == ([2], 0)


def test_a_cleared_lease_holds_no_audio_of_the_call_before() -> None:
    arena = Arena.ordinary(Shape(2, 2, 3, 3), 3)
    writer, outputs = InputWriter(InputRings(arena), LEASE), OutputRings(arena)
    writer.write(np.ones(4, np.float32), 0.0)
    frame = np.ones((1, 3), np.float32)
    outputs.publish(np.array([LEASE]), RingReplies.of(np.array([0]), NOT_PADDING, 0, frame, None))
    arena.clear(LEASE)
    assert not arena.blocks["in_pcm"].any()
    assert not arena.blocks["out_pcm"].any()


def test_the_turn_is_odd_while_counters_change_and_even_after_an_error_too() -> None:
    arena = Arena.ordinary(Shape(1, 1, 1, 1), 1)
    before, inside = arena.sequence, []

    def fail_inside() -> None:
        with arena.writing():
            inside.append(arena.sequence)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert (before % 2, inside, arena.sequence) == (0, [before + 1], before + 2)

"""The ring does what a list would, with less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.audio.ring import FrameRing
from antiphon.errors import AudioError


class ListRing:
    """The same promises, kept by a list of all samples ever pushed."""

    def __init__(self, frame_samples: int, capacity_frames: int) -> None:
        self.frame_samples = frame_samples
        self.capacity = frame_samples * capacity_frames
        self.samples: list[float] = []
        self.received_s: list[float] = []
        self.start = 0  # frames gone

    @property
    def stored(self) -> int:
        return len(self.samples) - self.start * self.frame_samples

    @property
    def ready_frames(self) -> int:
        return self.stored // self.frame_samples

    def complete_times(self) -> list[float]:
        ends = range(self.start + 1, self.start + 1 + self.ready_frames)
        return [self.received_s[end * self.frame_samples - 1] for end in ends]

    def push(self, samples: list[float], received_s: float) -> int:
        self.samples += samples
        self.received_s += [received_s] * len(samples)
        dropped = 0
        while self.stored > self.capacity:
            self.start += 1
            dropped += 1
        return dropped

    def pop(self) -> tuple[int, list[float], float] | None:
        if not self.ready_frames:
            return None
        begin = self.start * self.frame_samples
        end = begin + self.frame_samples
        self.start += 1
        return self.start - 1, self.samples[begin:end], self.received_s[end - 1]

    def finish(self) -> None:
        missing = -len(self.samples) % self.frame_samples
        self.push([0.0] * missing, self.received_s[-1] if self.received_s else 0.0)

    def clear(self) -> int:
        cleared = self.ready_frames
        self.start += cleared
        begin = self.start * self.frame_samples
        self.samples[begin:] = [0.0] * self.stored
        return cleared


Step = Callable[[FrameRing, ListRing, float], None]


def pushing(count: int) -> Step:
    def step(ring: FrameRing, model: ListRing, now_s: float) -> None:
        samples = np.arange(1, count + 1, dtype=np.float32) + np.float32(1000 * now_s)
        assert ring.push(samples, now_s) == model.push(samples.tolist(), now_s)

    return step


def popping(ring: FrameRing, model: ListRing, now_s: float) -> None:
    got, expected = ring.pop(), model.pop()
    assert (None if got is None else (got[0], got[1].tolist(), got[2])) == expected


def popping_into(ring: FrameRing, model: ListRing, now_s: float) -> None:
    out = np.full(model.frame_samples, -1, np.float32)
    got, expected = ring.pop_into(out), model.pop()
    if expected is None:
        assert got is None
        assert (out == -1).all()
    else:
        assert (got, out.tolist()) == ((expected[0], expected[2]), expected[1])


def finishing(ring: FrameRing, model: ListRing, now_s: float) -> None:
    ring.finish()
    model.finish()


def clearing(ring: FrameRing, model: ListRing, now_s: float) -> None:
    assert ring.clear() == model.clear()


steps = st.lists(
    st.integers(0, 40).map(pushing) | st.sampled_from([popping, popping_into, popping, finishing, clearing]),
    max_size=30,
)


@given(st.integers(1, 7), st.integers(1, 4), steps)
def test_the_ring_does_what_a_list_would(frame_samples: int, capacity_frames: int, steps: list[Step]) -> None:
    ring = FrameRing(frame_samples, capacity_frames)
    model = ListRing(frame_samples, capacity_frames)
    for now, step in enumerate(steps):
        step(ring, model, float(now))
        assert ring.ready_frames == model.ready_frames
        assert ring.complete_times() == model.complete_times()
        assert ring.free_samples == model.capacity - model.stored
        assert ring.next_index == model.start


def test_a_frame_is_complete_when_its_last_sample_came() -> None:
    ring = FrameRing(4, 4)
    ring.push(np.ones(3, np.float32), 1.0)
    assert ring.pop() is None
    ring.push(np.ones(6, np.float32), 2.0)
    frames = [ring.pop(), ring.pop()]
    assert [(frame[0], frame[2]) for frame in frames if frame is not None] == [(0, 2.0), (1, 2.0)]
    ring.finish()
    last = ring.pop()
    assert last is not None
    assert (last[0], last[1].tolist(), last[2]) == (2, [1, 0, 0, 0], 2.0)


def test_a_popped_frame_is_not_changed_by_what_comes_later() -> None:
    ring = FrameRing(2, 1)
    ring.push(np.array([1, 2], np.float32), 0.0)
    taken = ring.pop()
    ring.push(np.array([3, 4], np.float32), 0.0)
    assert taken is not None
    assert taken[1].tolist() == [1, 2]


def test_clearing_keeps_the_meaning_of_indices() -> None:
    ring = FrameRing(4, 4)
    ring.push(np.arange(1, 7, dtype=np.float32), 0.0)
    assert ring.clear() == 1
    ring.push(np.array([7, 8], np.float32), 1.0)
    taken = ring.pop()
    assert taken is not None
    assert (taken[0], taken[1].tolist()) == (1, [0, 0, 7, 8])


@pytest.mark.parametrize(("frame_samples", "capacity_frames"), [(0, 4), (4, 0)])
def test_a_ring_that_holds_nothing_is_refused(frame_samples: int, capacity_frames: int) -> None:
    with pytest.raises(
        AudioError, match=f"a ring of {capacity_frames} frames of {frame_samples} samples holds nothing"
    ):
        FrameRing(frame_samples, capacity_frames)

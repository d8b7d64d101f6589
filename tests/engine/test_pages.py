"""Rows with shared pages: admission, and eviction when no page is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.backends.base import (
    FRAMES,
    BoolArray,
    IntArray,
    PageCount,
    PrimeProgress,
    StepInputs,
    StepOutputs,
)
from antiphon.backends.page_pool import PAGE_SLOTS, PagePool
from antiphon.engine.call_state import SavedState
from antiphon.engine.loop import NO_PAGES
from antiphon.engine.sessions import pages_of
from antiphon.errors import ServerFullError
from antiphon.ipc.session import Session
from antiphon.ipc.values import SessionState
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from tests.engine.bench import Bench, heard, pcm_of
from tests.engine.fakes import FakeBackend, fake_spec

MOST = 3


class PagedBackend(FakeBackend):
    """Rows of up to three pages; a step of a row without its page fails the test."""

    def __init__(self, slots: int, pages: int) -> None:
        spec = fake_spec(PipelineKind.DUPLEX)
        assert spec.lm is not None
        super().__init__(replace(spec, lm=replace(spec.lm, context=MOST * PAGE_SLOTS)), slots=slots)
        self.pool = PagePool(slots, MOST, pages)
        self.during_room: Callable[[], object] = lambda: None

    def _ages(self, rows: IntArray, reset: BoolArray) -> NDArray[np.int64]:
        ages = np.array([row.taken for row in self.rows])
        ages[rows[reset]] = 0
        return ages

    def page_count(self) -> PageCount:
        return PageCount(self.pool.free, self.pool.pages)

    def make_room(self, rows: IntArray, reset: BoolArray) -> list[int]:
        ages = self._ages(rows, reset)
        ended = self.pool.youngest(rows, ages[rows] + 1, ages)
        self.pool.release(ended)
        during, self.during_room = self.during_room, lambda: None
        if ended:
            during()
        else:
            self.during_room = during
        return ended

    def prime(self, row: int, prompt: Prompt) -> PrimeProgress:
        progress = super().prime(row, prompt)
        self.pool.hold(np.array([row], np.int32), np.array([progress.done]))
        return progress

    def release(self, row: int) -> None:
        self.pool.release([row])

    def step(self, inputs: StepInputs) -> StepOutputs:
        self.pool.hold(inputs.rows, self._ages(inputs.rows, inputs.reset)[inputs.rows] + 1)
        return super().step(inputs)


def prompt_of(count: int) -> Prompt:
    return Prompt(np.zeros((count, 1), np.int32))


def talk(bench: Bench, sessions: list[Session], count: int) -> list[list[float]]:
    """Frames of all that are open, one a tick; what each heard back."""
    said: list[list[float]] = [[] for _ in sessions]
    for index in range(count):
        for session in sessions:
            if session.state is SessionState.ACTIVE:
                bench.push(session, float(index))
        bench.ticks()
        for session, replies in zip(sessions, said, strict=True):
            replies += heard(session.take())
    return said


def test_while_pages_last_no_session_ends_and_then_the_youngest_does() -> None:
    backend = PagedBackend(slots=3, pages=4)
    bench = Bench(backend)
    old, middle, young = (bench.submit() for _ in range(3))
    talk(bench, [old], PAGE_SLOTS)
    talk(bench, [middle], 2)
    talk(bench, [young], 1)
    assert (backend.pool.free, bench.read("ring_pages"), bench.read("ring_pages_free")) == (1, 4, 1)
    old_said, middle_said, _ = talk(bench, [old, middle, young], PAGE_SLOTS)
    assert old_said == middle_said == list(map(float, range(PAGE_SLOTS))), "no frame of theirs was lost"
    assert young.error is not None
    assert "the server admits more than its GPU holds (overcommit), and the youngest" in str(young.error)
    assert bench.read("evicted_sessions_total") == 1
    assert [old.error, middle.error] == [None, None]
    for session in (old, middle):
        session.close()
    bench.ticks()
    assert backend.pool.free == 4


def test_a_newcomer_is_not_admitted_at_the_cost_of_the_others() -> None:
    bench = Bench(PagedBackend(slots=4, pages=4))
    first, second = bench.submit(), bench.submit()
    talk(bench, [first, second], 1)
    wanted = (
        "2 of 4 rows are free, but only 2 of 4 pages of keys and values are free; 2 are promised to "
        r"sessions, and this one needs 1 \(overcommit\)"
    )
    with pytest.raises(ServerFullError, match=wanted) as refused:
        bench.submit()
    assert refused.value.retry_after_s == bench.engine.config.session_guess_s / 2, "as without a free row"
    assert (bench.engine.health().ready, bench.engine.health().free) == (False, 0)
    third = bench.submit(wait_s=60.0)
    states = [third.state]
    second.close()
    for _ in range(2):
        bench.ticks()
        states.append(third.state)
    assert (states[0], states[-1]) == (SessionState.QUEUED, SessionState.ACTIVE)


def test_pages_are_promised_to_prompts_that_are_not_read_yet() -> None:
    bench = Bench(PagedBackend(slots=4, pages=5))
    assert bench.engine.health().free == 4
    reading = bench.submit(prompt=prompt_of(2 * PAGE_SLOTS))
    assert bench.engine.health().free == 2, "five pages, three of them promised"
    with pytest.raises(ServerFullError, match="3 are promised to sessions, and this one needs 3"):
        bench.submit(prompt=prompt_of(2 * PAGE_SLOTS))
    waiting = bench.submit(prompt=prompt_of(2 * PAGE_SLOTS), wait_s=60.0)
    talk(bench, [reading], 1)
    while reading.state is not SessionState.ACTIVE:
        bench.ticks()
    assert waiting.state is SessionState.QUEUED, "the pages of the first are taken now"
    reading.close()
    bench.ticks()
    bench.ticks()
    assert waiting.state is not SessionState.QUEUED


def test_a_call_of_another_worker_needs_the_pages_of_its_age() -> None:
    frames = np.array(3 * PAGE_SLOTS + 5)
    assert pages_of(SavedState({FRAMES: frames})) == 4
    assert pages_of(SavedState({})) == pages_of(None) == 1


def test_a_session_that_comes_while_another_is_ended_waits_for_the_next_tick() -> None:
    """What it needs is counted there, and ends no step of the others."""
    backend = PagedBackend(slots=3, pages=3)
    bench = Bench(backend)
    old, young, late = (bench.submit() for _ in range(3))
    talk(bench, [old], 2 * PAGE_SLOTS)
    talk(bench, [young], PAGE_SLOTS)
    backend.during_room = lambda: bench.push(late, 7.0)
    assert talk(bench, [old, young], 2) == [[0.0, 1.0], []]
    assert [str(session.error) for session in (young, late)] == [NO_PAGES, NO_PAGES]
    assert old.error is None


def test_a_session_that_comes_while_parameters_are_refused_has_its_own_parameters() -> None:
    backend = FakeBackend()
    bench = Bench(backend)
    backend.refused_seed = 13
    late = bench.submit(seed=5)
    other = bench.submit(seed=13)

    def refuse(row: int, parameters: SamplingParameters) -> None:
        if parameters.text_seed == 13:
            bench.push(late, 7.0)
        FakeBackend.set_parameters(backend, row, parameters)

    backend.set_parameters = refuse  # type: ignore[method-assign]
    bench.push(other, 1.0)
    bench.ticks()
    bench.ticks()
    assert other.error is not None
    assert [pcm_of(reply)[3] for reply in late.take()] == [5.0]


def test_rows_that_have_their_own_pages_show_none() -> None:
    bench = Bench()
    assert bench.registry.get_sample_value("antiphon_ring_pages", {"model": "fake"}) is None
    assert bench.read("evicted_sessions_total") == 0

"""The contract of every backend: what goes in and out of each call, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.backends.base import NO_TOKEN, Backend, RowSnapshot, StepInputs
from antiphon.errors import AudioError, ConfigError, UnsupportedError
from antiphon.models.spec import PipelineKind
from tests.backends.contract import (
    GREEDY,
    SLOTS,
    Driver,
    Subject,
    assert_same,
    chooses,
    differ,
    mask,
    silent_ticks,
    speaks,
    speaks_text,
    step_inputs,
    voice,
)

FRAMES = 8


def test_facts_are_consistent(driver: Driver) -> None:
    info = driver.info
    assert info.slots == SLOTS
    assert list(info.buckets) == sorted(set(info.buckets))
    assert info.buckets[-1] == SLOTS
    assert info.memory["state_per_row"] * SLOTS == driver.backend.state_bytes() > 0
    assert info.versions


def test_a_backend_needs_a_slot(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="at least 1 slot, not 0"):
        subject.make(0)


def test_outputs_have_their_shapes_and_dtypes(driver: Driver) -> None:
    info = driver.info
    for rows in info.buckets:
        driver.tick({0: voice(1, 1, info)[0]}, reset={0}, rows=rows)
        outputs = driver.last
        assert outputs is not None
        lm = info.spec.lm
        heads = lm.extra_heads if lm is not None and info.kind is PipelineKind.STT else 0
        assert_array(outputs.pcm, np.float32, (rows, info.spec.frame_samples) if speaks(info) else None)
        assert_array(outputs.text_tokens, np.int32, (rows,) if chooses(info) else None)
        assert_array(outputs.finished, np.bool_, (rows,) if info.kind is PipelineKind.TTS else None)
        assert_array(outputs.vad, np.float32, (rows, heads) if heads else None)
        for flags in (outputs.consumed, outputs.emitted):
            assert_array(flags, np.bool_, (rows,))
        assert outputs.stage_ms
        assert all(ms >= 0 for ms in outputs.stage_ms.values())


def assert_array(array: NDArray[Any] | None, dtype: type, shape: tuple[int, ...] | None) -> None:
    """Check an output's dtype and shape, or that there is none where the pipeline has none."""
    assert (array is None) == (shape is None)
    assert array is None or (array.dtype == dtype and array.shape == shape)


def test_an_executed_row_consumes_and_emits_after_its_silent_frames(driver: Driver) -> None:
    info = driver.info
    silent, is_written = silent_ticks(info), info.kind is PipelineKind.TTS
    frames = voice(2, silent + 3, info)
    for index, frame in enumerate(frames):
        replies = driver.tick({1: frame}, reset={1, 2} if index == 0 else (), rows=SLOTS)
        assert replies[1].consumed or (is_written and index >= silent), "words wait where there are enough"
        assert replies[1].emitted == (index >= silent)
        has_token = replies[1].text_token != NO_TOKEN
        assert has_token == (speaks_text(info) and index >= silent) or is_written
        for row in {*range(SLOTS)} - {1}:
            assert not replies[row].consumed
            assert not replies[row].emitted
            assert replies[row].text_token == NO_TOKEN


def test_outputs_depend_on_the_input(driver: Driver) -> None:
    info = driver.info
    assert differ(driver.run(0, voice(1, FRAMES, info)), driver.run(0, voice(2, FRAMES, info)))


def test_a_foreign_snapshot_is_refused(driver: Driver) -> None:
    with pytest.raises(UnsupportedError):
        driver.backend.restore(0, RowSnapshot("another", {}, 0))


def test_outputs_are_not_written_again(driver: Driver) -> None:
    info = driver.info
    frames = voice(22, silent_ticks(info) + 2, info)
    driver.run(0, frames)
    kept = driver.last
    assert kept is not None
    outputs = (kept.consumed, kept.emitted, kept.pcm, kept.text_tokens, kept.vad)
    arrays = [array for array in outputs if array is not None]
    copies = [array.copy() for array in arrays]
    driver.tick({0: voice(23, 1, info)[0]})
    driver.tick({}, reset={0})
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_inputs_are_not_written_to(driver: Driver) -> None:
    info = driver.info
    pcm = np.broadcast_to(voice(24, 1, info), (SLOTS, info.spec.frame_samples)).copy()
    executed, reset = mask(SLOTS, [0, 2]), mask(SLOTS, [0, 1])
    copies = pcm.copy(), executed.copy(), reset.copy()
    driver.backend.step(step_inputs(info, executed, reset, pcm))
    for array, copy in zip((pcm, executed, reset), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_bad_inputs_raise_with_their_numbers_and_touch_nothing(driver: Driver) -> None:
    info = driver.info
    samples = info.spec.frame_samples
    frames = voice(25, FRAMES, info)
    wanted = driver.run(0, frames, rows=SLOTS)
    driver.run(0, frames[:3], rows=SLOTS)
    some, none = mask(SLOTS, [0]), mask(SLOTS, [])
    pcm = np.zeros((SLOTS, samples), dtype=np.float32)
    too_many = mask(SLOTS + 1, [0])
    step = driver.backend.step
    with pytest.raises(UnsupportedError, match=f"{SLOTS + 1} rows.*{SLOTS}"):
        step(StepInputs(too_many, too_many, np.zeros((SLOTS + 1, samples), dtype=np.float32)))
    with pytest.raises(UnsupportedError, match=rf"reset is bool \[{SLOTS + 1}\].*bool \[{SLOTS}\]"):
        step(StepInputs(some, too_many, pcm))
    with pytest.raises(UnsupportedError, match=rf"exec is float32 \[{SLOTS}\]"):
        step(StepInputs(some.astype(np.float32), some, pcm))
    if info.kind is PipelineKind.TTS:
        for wrong in (StepInputs(some, some, pcm), StepInputs(some, some, None, ((),))):
            with pytest.raises(UnsupportedError, match=f"{SLOTS} rows needs {SLOTS} text tuples and no PCM"):
                step(wrong)
    else:
        with pytest.raises(AudioError, match=rf"float32 \[{SLOTS}, {samples - 1}\].*\[{SLOTS}, {samples}\]"):
            step(StepInputs(some, some, pcm[:, 1:]))
        with pytest.raises(AudioError, match="PCM is float64"):
            step(StepInputs(some, some, pcm.astype(np.float64)))
        with pytest.raises(UnsupportedError, match="needs PCM"):
            step(StepInputs(some, none))
    for call in (
        lambda: driver.backend.set_parameters(SLOTS, GREEDY),
        lambda: driver.backend.snapshot(-1),
        lambda: driver.backend.move(0, SLOTS),
    ):
        with pytest.raises(UnsupportedError):
            call()
    assert_same([driver.tick({0: frame}, rows=SLOTS)[0] for frame in frames[3:]], wanted[3:])


def test_warm_up_reports_its_progress_and_leaves_rows_fresh(subject: Subject, driver: Driver) -> None:
    backend: Backend = subject.make(SLOTS)
    reports: list[tuple[int, int, str]] = []
    backend.warm_up(lambda done, total, what: reports.append((done, total, what)))
    assert reports[-1][0] == reports[-1][1]
    assert [done for done, _, _ in reports] == sorted(done for done, _, _ in reports)
    warm = Driver(backend, subject.comparable)
    frames = voice(26, FRAMES, driver.info)
    backend.set_parameters(1, GREEDY)
    driver.backend.set_parameters(1, GREEDY)
    got = [warm.tick({1: frame}, rows=SLOTS)[1] for frame in frames]
    assert_same(got, driver.run(1, frames, rows=SLOTS))
    backend.close()

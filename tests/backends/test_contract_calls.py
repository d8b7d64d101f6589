"""The contract of every backend: arguments, results and refusals of each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.backends.base import NO_TOKEN, Backend, Resizable, RowSnapshot, StepInputs
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
    silent_ticks,
    speaks,
    speaks_text,
    step_inputs,
    voice,
)

FRAMES = 8


def test_facts_are_consistent(subject: Subject, driver: Driver) -> None:
    info = driver.info
    assert info.slots == SLOTS
    most = info.memory["state_per_row"] * SLOTS
    assert most > 0
    assert driver.backend.state_bytes() == most or (subject.grows and driver.backend.state_bytes() < most)
    assert (info.memory["caches"] > 0) == info.can_prime
    assert info.versions
    assert {type(version) for version in info.versions.values()} == {str}  # no subclass: it goes in a message


def test_a_backend_needs_a_slot(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="at least 1 slot, not 0"):
        subject.make(0)


def test_outputs_have_their_shapes_and_dtypes(driver: Driver) -> None:
    info = driver.info
    frame = voice(1, 1, info)[0]
    for rows in range(1, SLOTS + 1):
        driver.tick(dict.fromkeys(range(rows), frame), reset=range(rows))
        outputs = driver.last
        assert outputs is not None
        lm = info.spec.lm
        heads = lm.extra_heads if lm is not None and info.spec.kind is PipelineKind.STT else 0
        assert_array(outputs.pcm, np.float32, (rows, info.spec.frame_samples) if speaks(info) else None)
        assert_array(outputs.text_tokens, np.int32, (rows,) if chooses(info) else None)
        assert_array(outputs.finished, np.bool_, (rows,) if info.spec.kind is PipelineKind.TTS else None)
        assert_array(outputs.vad, np.float32, (rows, heads) if heads else None)
        for flags in (outputs.consumed, outputs.emitted):
            assert_array(flags, np.bool_, (rows,))
        assert outputs.stage_ms
        assert all(ms >= 0 for ms in outputs.stage_ms.values())


def assert_array(array: NDArray[Any] | None, dtype: type, shape: tuple[int, ...] | None) -> None:
    """Check an output's dtype and shape, or that there is none where the pipeline has none."""
    assert (array is None) == (shape is None)
    assert array is None or (array.dtype == dtype and array.shape == shape)


def test_a_row_consumes_and_emits_after_its_delay_frames(driver: Driver) -> None:
    info = driver.info
    silent, is_written = silent_ticks(info), info.spec.kind is PipelineKind.TTS
    frames = voice(2, silent + 3, info)
    for index, frame in enumerate(frames):
        replies = driver.tick({1: frame}, reset={1} if index == 0 else (), fixed=True)
        assert replies[1].consumed or (is_written and index >= silent), "words wait where there are enough"
        assert replies[1].emitted == (index >= silent)
        has_token = replies[1].text_token != NO_TOKEN
        assert has_token == (speaks_text(info) and index >= silent) or is_written


def test_outputs_depend_on_the_input(driver: Driver) -> None:
    info = driver.info
    assert differ(driver.run(0, voice(1, FRAMES, info)), driver.run(0, voice(2, FRAMES, info)))


def test_a_foreign_snapshot_is_refused(driver: Driver) -> None:
    with pytest.raises(UnsupportedError):
        driver.backend.restore(0, RowSnapshot("another", {}, 0))


def test_a_snapshot_with_one_tensor_of_another_form_is_refused(driver: Driver) -> None:
    backend = driver.backend
    driver.run(0, voice(21, 3, driver.info))
    arrays = backend.to_host(backend.snapshot(0))
    for name in arrays:
        for wrong in (np.zeros((2, 0), np.float32), np.full(3, np.nan), np.array(-1, np.int64)):
            is_like_it = (wrong.shape, wrong.dtype) == (arrays[name].shape, arrays[name].dtype)
            if not is_like_it or name == "host.frames":
                with pytest.raises(UnsupportedError):
                    backend.restore(0, backend.from_host({**arrays, name: wrong}))


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
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_inputs_are_not_written_to(driver: Driver) -> None:
    info = driver.info
    pcm = np.repeat(voice(24, 1, info), 3, axis=0)
    rows, reset = np.array([4, 0, 2], np.int32), np.array([True, True, False])
    copies = pcm.copy(), rows.copy(), reset.copy()
    driver.backend.step(step_inputs(info, rows, reset, pcm))
    for array, copy in zip((pcm, rows, reset), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_bad_inputs_raise_with_their_numbers_and_touch_nothing(driver: Driver) -> None:
    info = driver.info
    samples = info.spec.frame_samples
    frames = voice(25, FRAMES, info)
    wanted = driver.run(0, frames, fixed=True)
    driver.run(0, frames[:3], fixed=True)
    step = driver.backend.step
    rows, reset = np.array([0, 2], np.int32), np.zeros(2, np.bool_)
    pcm = np.zeros((2, samples), dtype=np.float32)
    for named, message in (
        (np.array([0, SLOTS], np.int32), f"rows 0 to {SLOTS}.*rows 0 to {SLOTS - 1}"),
        (np.array([-1, 0], np.int32), "rows -1 to 0"),
        (np.array([2, 2], np.int32), "row 2 twice"),
        (np.array([0, 2]), r"rows are int64 \[2\]"),
        (np.empty(0, np.int32), "at least 1"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            step(StepInputs(named, reset[: named.size], pcm[: named.size]))
    with pytest.raises(UnsupportedError, match=r"reset is bool \[3\].*bool \[2\]"):
        step(StepInputs(rows, np.zeros(3, np.bool_), pcm))
    if info.spec.kind is PipelineKind.TTS:
        for wrong in (StepInputs(rows, reset, pcm), StepInputs(rows, reset, None, ((),))):
            with pytest.raises(UnsupportedError, match="2 rows needs 2 text tuples and no PCM"):
                step(wrong)
    else:
        with pytest.raises(AudioError, match=rf"float32 \[2, {samples - 1}\].*\[2, {samples}\]"):
            step(StepInputs(rows, reset, pcm[:, 1:]))
        with pytest.raises(AudioError, match="PCM is float64"):
            step(StepInputs(rows, reset, pcm.astype(np.float64)))
        with pytest.raises(UnsupportedError, match="needs PCM"):
            step(StepInputs(rows, reset))
    for call in (
        lambda: driver.backend.set_parameters(SLOTS, GREEDY),
        lambda: driver.backend.snapshot(-1),
    ):
        with pytest.raises(UnsupportedError):
            call()
    assert_same([driver.tick({0: frame}, fixed=True)[0] for frame in frames[3:]], wanted[3:])


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
    got = [warm.tick({1: frame}, fixed=True)[1] for frame in frames]
    assert_same(got, driver.run(1, frames, fixed=True))
    backend.close()


def test_rows_can_be_aged_for_timing_and_are_fresh_after_a_warm_up(subject: Subject, driver: Driver) -> None:
    backend: Backend = subject.make(SLOTS)
    assert isinstance(backend, Resizable)
    frames = voice(27, FRAMES, driver.info)
    aged = Driver(backend, subject.comparable)
    backend.age(100)
    with np.errstate(all="ignore"):
        aged.tick({0: frames[0], 3: frames[1]})
    backend.warm_up(lambda done, total, what: None)
    assert_same([aged.tick({1: frame}, fixed=True)[1] for frame in frames], driver.run(1, frames, fixed=True))
    backend.close()

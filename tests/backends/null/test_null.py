from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.base import Backend, FloatArray, StepInputs, TextEntry
from antiphon.backends.host import HostBackend
from antiphon.backends.null import (
    STAMP_SAMPLES,
    NullFaults,
    NullRows,
    WordArray,
    extend_history,
    hash_frames,
    make,
)
from antiphon.backends.tts import TtsBackend
from antiphon.errors import DeviceLostError, StepError, UnsupportedError
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.prompt import Prompt
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import ModelSpec, PipelineKind
from tests.backends.contract import GREEDY, Driver, Reply, voice
from tests.backends.subjects import make_null, null_spec
from tests.support.null_backend import NullBackend
from tests.support.stamp import Stamp, read_stamp

CODEC, DUPLEX = null_spec(PipelineKind.CODEC), null_spec(PipelineKind.DUPLEX)
STT, TTS = null_spec(PipelineKind.STT), null_spec(PipelineKind.TTS)


def stamp_of(reply: Reply) -> Stamp:
    assert reply.pcm is not None
    return read_stamp(reply.pcm)


class FakeTime:
    """A clock that moves only when somebody sleeps, or by ``per_look_s`` at every look."""

    def __init__(self, per_look_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.slept_s: list[float] = []
        self._per_look_s = per_look_s

    def clock(self) -> float:
        self.now_s += self._per_look_s
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def test_the_stamp_tells_session_frame_and_all_the_input() -> None:
    driver = Driver(NullBackend(DUPLEX, 4))
    frames = voice(1, 5, driver.info)
    replies = driver.run(2, frames)
    history: WordArray = np.zeros(1, dtype=np.uint32)
    assert replies[0].pcm is None
    for index, (frame, reply) in enumerate(zip(frames, replies, strict=True)):
        history = extend_history(history, hash_frames(frame[None]))
        if index < DUPLEX.delay_frames:
            continue
        assert reply.pcm is not None
        stamp = read_stamp(reply.pcm)
        assert (stamp.frame, stamp.frame_hash) == (index, hash_frames(frame[None])[0])
        assert stamp.history == history[0]
        np.testing.assert_array_equal(reply.pcm[STAMP_SAMPLES:], frame[STAMP_SAMPLES:])


def test_every_session_has_a_life_of_its_own() -> None:
    driver = Driver(NullBackend(CODEC, 4))
    frame = voice(1, 1, driver.info)[0]
    lives: list[int] = []
    for reset in ({0, 1, 2}, set(), {1}, {2, 0}):
        replies = driver.tick({0: frame, 1: frame, 2: frame}, reset=reset)
        lives += [stamp_of(replies[row]).life for row in range(3)]
    assert lives == [1, 2, 3, 1, 2, 3, 1, 4, 3, 5, 4, 6]


def test_text_tokens_are_words_of_the_vocabulary() -> None:
    driver = Driver(NullBackend(DUPLEX, 1))
    tokens = [reply.text_token for reply in driver.run(0, voice(3, 200, driver.info)) if reply.emitted]
    assert DUPLEX.lm is not None
    assert min(tokens) >= 4
    assert max(tokens) < DUPLEX.lm.text_card
    assert len(set(tokens)) > 50


def test_a_step_sleeps_for_what_is_left_of_its_time() -> None:
    fake = FakeTime()
    driver = Driver(NullBackend(CODEC, 1, step_ms=5, clock=fake.clock, sleep=fake.sleep))
    driver.run(0, voice(1, 3, driver.info))
    assert fake.slept_s == pytest.approx([0.005] * 3)


def test_a_step_that_computed_for_longer_than_its_time_does_not_sleep() -> None:
    fake = FakeTime(per_look_s=0.01)
    driver = Driver(NullBackend(CODEC, 1, step_ms=5, clock=fake.clock, sleep=fake.sleep))
    driver.run(0, voice(1, 1, driver.info))
    assert fake.slept_s == [0.0]


def test_a_step_that_holds_the_lock_never_sleeps() -> None:
    fake = FakeTime(per_look_s=0.001)
    backend = NullBackend(CODEC, 1, step_ms=20, hold_gil=True, clock=fake.clock, sleep=fake.sleep)
    Driver(backend).run(0, voice(1, 1, backend.info))
    assert fake.slept_s == []
    assert 0.020 <= fake.now_s < 0.025


def test_planned_rows_fail_once_when_they_are_next_executed() -> None:
    driver = Driver(NullBackend(CODEC, 4, faults=NullFaults(fail_rows={1: (2, 3)})))
    frame = voice(1, 1, driver.info)[0]
    driver.tick({2: frame})
    driver.tick({0: frame})
    with pytest.raises(StepError, match=r"rows \[2\] were planned to fail, and did at tick 2") as caught:
        driver.tick({0: frame, 2: frame})
    assert caught.value.rows == (2,)
    assert stamp_of(driver.tick({0: frame, 2: frame})[0]).frame == 2


def test_a_lost_device_stays_lost() -> None:
    driver = Driver(NullBackend(CODEC, 1, faults=NullFaults(lose_device_at=2)))
    frames = voice(1, 2, driver.info)
    driver.run(0, frames)
    for tick in (2, 3):
        with pytest.raises(DeviceLostError, match=f"planned to be lost at tick 2; this is tick {tick}"):
            driver.tick({0: frames[0]})


def test_at_a_planned_tick_the_first_row_hears_samples_that_are_no_numbers() -> None:
    driver = Driver(NullBackend(CODEC, 2, faults=NullFaults(nan_at=frozenset({1}))))
    frame = voice(1, 1, driver.info)[0]
    heard = [driver.tick({0: frame, 1: frame}) for _ in range(3)]
    lost = [
        [reply.pcm is not None and bool(np.isnan(reply.pcm).all()) for reply in tick.values()]
        for tick in heard
    ]
    assert lost == [[False, False], [True, False], [False, False]]


def test_a_planned_slow_tick_takes_longer() -> None:
    fake = FakeTime()
    faults = NullFaults(slow_ms={1: 300.0})
    driver = Driver(NullBackend(CODEC, 1, step_ms=5, faults=faults, clock=fake.clock, sleep=fake.sleep))
    driver.run(0, voice(1, 3, driver.info))
    assert fake.slept_s == pytest.approx([0.005, 0.305, 0.005])


def spoken(backend: Backend, words: Sequence[tuple[int, ...]], parameters: SamplingParameters) -> FloatArray:
    """All that row 0 says of words, float32 ``[frames, samples]``."""
    backend.set_parameters(0, parameters)
    entries = (*(TextEntry(word) for word in words), TextEntry((), is_last=True))
    said = []
    for tick in range(60):
        text = entries[4 * tick : 4 * tick + 4]
        outputs = backend.step(StepInputs(np.zeros(1, np.int32), np.array([tick == 0]), None, (text,)))
        assert outputs.pcm is not None
        assert outputs.finished is not None
        said += [outputs.pcm[0]] * int(outputs.emitted[0])
        if outputs.finished[0]:
            return np.stack(said)
    raise AssertionError("it does not end")


@given(words=st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=4).map(tuple), max_size=8))
def test_a_recogniser_reads_what_a_synthesiser_spells(words: list[tuple[int, ...]]) -> None:
    pcm = spoken(make_null(TTS, 1), words, GREEDY)[:, STAMP_SAMPLES:]
    ears = replace(STT, mimi=replace(STT.mimi, frame_rate=STT.sample_rate / pcm.shape[1]))
    driver = Driver(NullBackend(ears, 2))
    driver.backend.set_parameters(1, GREEDY)
    delay = [np.zeros_like(pcm[0])] * 4
    heard = [reply.text_token for reply in driver.run(1, [*pcm, *delay])]
    assert [token for token in heard if token != 3] == [token for word in words for token in word]


def test_a_spoken_frame_is_stamped_with_its_token_and_the_voice_s_seed() -> None:
    backend = make_null(TTS, 1)
    runs = [
        [read_stamp(frame) for frame in spoken(backend, [(7, 8), (9,)], SamplingParameters(audio_seed=seed))]
        for seed in (1, 1, 2)
    ]
    told = [[(stamp.frame_hash, stamp.history) for stamp in run] for run in runs]
    assert [token for token, _ in told[0]] == [3, 3, 7, 8, 9, 3, 3, 3, 3]
    assert told[0] == told[1]
    assert [token for token, _ in told[0]] == [token for token, _ in told[2]]
    assert not {history for _, history in told[0]} & {history for _, history in told[2]}
    assert len({run[0].life for run in runs}) == 3


@pytest.mark.parametrize("spec", [STT, TTS])
def test_a_row_fails_whenever_it_meets_a_poison(spec: ModelSpec) -> None:
    rows = NullRows(spec, faults=NullFaults(poison=9))
    backend = TtsBackend(spec, rows, slots=2) if spec is TTS else HostBackend(spec, rows, slots=2)
    pcm = np.repeat(np.array([[0.009], [0.01]], np.float32), 1920, axis=1)
    text = ((TextEntry((9,)),), (TextEntry((10,)),))
    inputs = StepInputs(
        np.arange(2, dtype=np.int32),
        np.ones(2, np.bool_),
        **({"text": text} if spec is TTS else {"pcm": pcm}),
    )

    def step_on() -> None:
        nonlocal inputs
        for _ in range(4):
            backend.step(inputs)
            inputs = replace(inputs, reset=np.zeros(2, np.bool_))

    with pytest.raises(StepError, match=r"rows \[0\] were planned to fail, and did at tick \d"):
        step_on()


@pytest.mark.parametrize(("rate", "samples"), [(24000 / 190, 190), (24000 / 193, 193)])
def test_a_frame_without_room_for_a_stamp_is_refused(rate: float, samples: int) -> None:
    with pytest.raises(UnsupportedError, match=f"at least 192 samples, this model has {samples}"):
        NullBackend(replace(CODEC, mimi=replace(CODEC.mimi, frame_rate=rate)), 1)


def test_it_runs_on_a_cpu_only(tmp_path: Path) -> None:
    checkpoint = Checkpoint(CODEC, "null", tmp_path, {})
    assert make(checkpoint, slots=1, device="cpu").info.device == "cpu"
    with pytest.raises(UnsupportedError, match="runs on cpu or null:N, not on cuda"):
        make(checkpoint, slots=1, device="cuda")


def test_a_row_restored_midway_begins_its_prompt_anew() -> None:
    lm = DUPLEX.lm
    assert lm is not None
    backend = NullBackend(replace(DUPLEX, lm=replace(lm, context=100)), 2)
    prompt = Prompt(np.zeros((100, 1 + lm.n_q), np.int32))
    assert [backend.prime(0, prompt).done for _ in range(2)] == [32, 64]
    backend.restore(0, backend.snapshot(1))
    assert backend.prime(0, prompt).done == 32


def test_a_snapshot_that_fails_ends_its_row_and_the_third_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = NullBackend(CODEC, 3)

    def fail(row: int) -> dict[str, Any]:
        raise RuntimeError(f"row {row} cannot be read")

    monkeypatch.setattr(backend.rows, "snapshot", fail)
    for _ in range(2):
        with pytest.raises(StepError, match=r"rows \[1\] failed: RuntimeError: row 1 cannot") as caught:
            backend.snapshot(1)
        assert caught.value.rows == (1,)
    with pytest.raises(DeviceLostError, match="3 steps in a row failed"):
        backend.snapshot(1)


def test_a_device_without_room_for_a_state_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = NullBackend(CODEC, 3)
    arrays = backend.to_host(backend.snapshot(1))

    def fail(_: object) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backend.rows, "from_host", fail)
    with pytest.raises(StepError, match="RuntimeError: out of memory"):
        backend.from_host(arrays)


def test_hundreds_of_rows_cost_little_beside_the_sleep() -> None:
    """Measured 0.15 ms for 256 rows; the limit leaves room for a busy machine."""
    backend = NullBackend(CODEC, 256, sleep=lambda seconds: None)
    rows, reset = np.arange(256, dtype=np.int32), np.zeros(256, dtype=np.bool_)
    inputs = StepInputs(rows, reset, np.zeros((256, 1920), dtype=np.float32))
    times_ms = []
    for _ in range(50):
        start_s = time.perf_counter()
        backend.step(inputs)
        times_ms.append(1000 * (time.perf_counter() - start_s))
    assert min(times_ms) < 1.0

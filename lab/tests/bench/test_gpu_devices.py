"""A model on the second of several GPUs: everything that its executor launches, also between ticks, runs
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from antiphon.backends.base import TextStep, Work
from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.generation import Generator, GuidedGenerator
from antiphon.backends.torch.tts import TorchTts
from antiphon.backends.torch.weights import Conditions
from antiphon.models.conditioning import UNGUIDED, SpeakerShape
from antiphon.models.sampling import SamplingParameters
from antiphon.models.spec import PipelineKind
from lab.bench.gpu_models import Form, empty_modules, lm_spec, model_spec, published_sizes, small_size
from tests.backends.torch.fake_cuda import FakeCuda, fake_cuda
from tests.backends.torch.recorded import Recorder

SECOND = "cuda:1"
SIZE = small_size(published_sizes()["moshi-7b"])
SLOTS, AGE = 3, 7


def host_buffer(_: TorchRows, buffer: Tensor) -> Tensor:
    return torch.zeros(buffer.shape, dtype=buffer.dtype)


@contextmanager
def fake_card(patch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Tensors are fake; values that an executor reads on the host are zeros."""
    numpy_types = {torch.int64: np.int64, torch.float32: np.float32}
    patch.setattr(TorchRows, "_host_buffer", host_buffer)
    patch.setattr(TensorSpec, "positions", lambda spec, _: AGE if spec.position else None)
    patch.setattr(
        FakeTensor, "numpy", lambda self: np.zeros(self.shape, numpy_types[self.dtype]), raising=False
    )
    with fake_cuda() as cuda, torch.no_grad():
        yield cuda


@contextmanager
def executor_on(
    device: str, patch: pytest.MonkeyPatch, *, overcommit: float = 1.0
) -> Iterator[tuple[TorchFrames, FakeCuda]]:
    """An executor of a duplex model, whose rows share pages if ``overcommit`` is above 1."""
    with fake_card(patch) as cuda:
        mimi, model = empty_modules(SIZE, Form.of(is_int8=True), "auto", device)
        generator = Generator(model.prepare(int8=True), lm_spec(SIZE))
        executor = TorchFrames(model_spec(SIZE), mimi.prepare(), generator, overcommit=overcommit)
        executor.allocate(SLOTS)
        yield executor, cuda


def work_of(rows: list[int]) -> Work:
    count = len(rows)
    flags = np.ones(count, np.bool_)
    return Work(
        rows=np.array(rows, np.int32),
        frames=np.full(count, AGE, np.int64),
        pcm=np.zeros((count, 1920), np.float32),
        is_fresh=flags,
        is_emitting=flags,
        is_forgotten=flags,
        is_fixed=False,
    )


PROMPTS: dict[str, Callable[[TorchFrames], Any]] = {
    "encode_piece": lambda executor: executor.encode_piece(None, np.zeros((4, 1920), np.float32)),
    "encode_piece, one frame": lambda executor: executor.encode_piece(None, np.zeros((1, 1920), np.float32)),
    "read_tokens": lambda executor: executor.read_tokens(1, np.zeros((17, 5), np.int32), AGE),
    "read_tokens, one frame": lambda executor: executor.read_tokens(1, np.zeros((17, 1), np.int32), AGE),
    "read_embedded": lambda executor: executor.read_embedded(1, np.zeros((5, 64), np.float32), AGE),
    "read_embedded, one frame": lambda executor: executor.read_embedded(
        1, np.zeros((1, 64), np.float32), AGE
    ),
    "write_tokens": lambda executor: executor.write_tokens(
        1, np.array([1, 2], np.int32), np.array([3, 4], np.int32), np.array([5, 6], np.int32)
    ),
    "run_lm_row": lambda executor: executor.run_lm_row(1, np.zeros(8, np.int32), AGE),
    "snapshot and restore": lambda executor: executor.restore(1, executor.snapshot(0)),
}
METHODS = PROMPTS | {
    "run": lambda executor: executor.run(work_of([2, 0])),
    "warm_up": lambda executor: executor.warm_up(lambda *_: None),
    "reset": lambda executor: executor.reset([1]),
    "age": lambda executor: executor.age(9),
    "set_parameters": lambda executor: executor.set_parameters(1, SamplingParameters(text_topk=900)),
    "plan": lambda executor: executor.plan(np.zeros(1, np.int32), is_fixed=False),
}


def test_all_that_an_executor_launches_runs_on_its_own_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on a thread's current GPU: with another one's pointers the result is an error, or
    garbage."""
    with executor_on(SECOND, monkeypatch, overcommit=1.5) as (executor, cuda):
        assert executor.pool is not None
        for name, method in METHODS.items():
            try:
                method(executor)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            assert cuda.current == 0, name
        assert cuda.counts["embed_streams"] > 2


def test_what_prompts_run_has_been_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is first needed between two ticks is loaded there, while every call waits."""
    with executor_on(SECOND, monkeypatch) as (executor, cuda):
        with Recorder() as warmed:
            executor.warm_up(lambda *_: None)
        compiled = {launch.name for launch in cuda.launches}
        cuda.launches.clear()
        known = {one.name for one in warmed.operations}
        for name, prompt in PROMPTS.items():
            with Recorder() as recorder:
                prompt(executor)
            assert {one.name for one in recorder.operations} <= known, name
        assert cuda.launches
        assert {launch.name for launch in cuda.launches} <= compiled


def step_of(rows: list[int], *, is_silent: bool) -> TextStep:
    count = len(rows)
    return TextStep(
        rows=np.array(rows, np.int32),
        frames=np.full(count, AGE, np.int64),
        choices=np.zeros((count, 2), np.int32),
        is_emitting=np.full(count, not is_silent),
        is_silent=is_silent,
    )


SPOKEN: dict[str, Callable[[TorchTts], Any]] = {
    "warm_up": lambda executor: executor.warm_up(lambda *_: None),
    "reset_rows": lambda executor: executor.reset_rows(np.array([1], np.int32)),
    "advance": lambda executor: executor.advance(step_of([2, 0], is_silent=False)),
    "advance, silent": lambda executor: executor.advance(step_of([1], is_silent=True)),
    "a voice": lambda executor: executor.write_voice(1, executor.compute_voice(None)),
    "snapshot and restore": lambda executor: executor.restore(1, executor.snapshot(0)),
    "reset": lambda executor: executor.reset([1]),
}


@pytest.mark.parametrize("guidance", [UNGUIDED, 2.0])
def test_all_that_a_speaking_executor_launches_runs_on_its_own_card(
    monkeypatch: pytest.MonkeyPatch, guidance: float
) -> None:
    size = small_size(published_sizes()["tts-1.6b"])
    spec, lm = replace(model_spec(size), kind=PipelineKind.TTS), lm_spec(size)
    with fake_card(monkeypatch) as cuda:
        mimi, model = empty_modules(size, Form.of(is_int8=True), "auto", SECOND)
        model.prepare(int8=True)
        dim, positions = size.lm["dim"], size.cross_positions
        with torch.device(SECOND):
            conditions = Conditions(
                None,
                shape=SpeakerShape(positions // 5, 4),
                projection=torch.zeros(dim, 4),
                empty=torch.zeros(dim),
                positions=torch.zeros(positions, dim),
            )
        generator = Generator(model, lm, audio_delay=2)
        if guidance != UNGUIDED:
            generator = GuidedGenerator(model, lm, coefficient=guidance, audio_delay=2)
        executor = TorchTts(spec, mimi.prepare(), generator, conditions)
        executor.allocate(SLOTS)
        for name, method in SPOKEN.items():
            method(executor)
            assert cuda.current == 0, name
        assert cuda.counts["attend_limbs"] > 2

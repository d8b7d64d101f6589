"""Parity of a GPU with a CPU: the differences that the check accepts, and those that it finds, without a
GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.executor import TorchRows
from antiphon.backends.torch.modules.attention import KVRing, SelfAttention
from antiphon.backends.torch.modules.layers import RMSNorm
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.pipeline import Pipeline
from antiphon.backends.torch.state import PackedStep, Run, Step
from lab.bench.gpu_models import published_sizes, small_size
from lab.bench.gpu_parity import BOUNDS, FEW_STREAMS, compare, is_certain, two_backends

ROOT = Path(__file__).parents[3]
SHRUNK = small_size(published_sizes()["moshi-7b"])
SIZE = replace(SHRUNK, lm={**SHRUNK.lm, **FEW_STREAMS})
TICKS, ROWS = 20, 4


def pipeline_of(backend: HostBackend) -> Pipeline:
    assert isinstance(backend.executor, TorchRows)
    return backend.executor.pipeline


def model_of(backend: HostBackend) -> LanguageModel:
    generator = pipeline_of(backend).generator
    assert generator is not None
    return generator.model


def attentions(backend: HostBackend) -> list[SelfAttention]:
    return [layer.self_attn for layer in model_of(backend).transformer.layers]  # type: ignore[misc]


def wrap(thing: object, name: str, changed: Callable[..., Any]) -> None:
    """Replace a method of one object by ``changed``, which gets the method first."""
    method = getattr(thing, name)
    vars(thing)[name] = lambda *given, **named: changed(method, *given, **named)


def add_noise(backend: HostBackend) -> None:
    """The effect of another rounding: 1e-3 in attention, two units in the last place of norms."""
    random = torch.Generator().manual_seed(1)

    def noisy(method: Any, *given: Any) -> Tensor:
        out: Tensor = method(*given)
        return out * (1 + 1e-3 * torch.randn(out.shape, generator=random))

    def rounded(method: Any, x: Tensor) -> Tensor:
        out: Tensor = method(x)
        ulps = torch.randint(-2, 3, out.shape, generator=random)
        return out * (1 + ulps * torch.finfo(out.dtype).eps)

    for attention in attentions(backend):
        wrap(attention, "_attend", noisy)
    for norm in model_of(backend).modules():
        if isinstance(norm, RMSNorm):
            wrap(norm, "forward", rounded)


@dataclass(frozen=True, slots=True)
class LateRing(KVRing):
    """It writes one slot too far."""

    def write(self, step: Step, slots: Tensor, k: Tensor, v: Tensor) -> None:
        KVRing.write(self, step, (slots + 1) % self.capacity, k, v)


@dataclass(frozen=True, slots=True)
class OthersScales(KVRing):
    """A head's values are read with the scales of another."""

    def read_part(self, step: Step, run: Run | None, part: str, length: int) -> Tensor:
        values = KVRing.read_part(self, step, run, part, length)
        if not self.form.is_rounded:
            return values.roll(1, 1)
        scale = step.ring(f"{self.name}.{part}_scale", run, length)[:, :, :length, None]
        return values / scale.clamp_min(1e-12) * scale.roll(1, 1)


def with_ring(kind: type[KVRing]) -> Callable[[HostBackend], None]:
    def plant(backend: HostBackend) -> None:
        for attention in attentions(backend):
            ring = attention.ring
            attention.ring = kind(
                ring.name, ring.heads, ring.capacity, ring.head_dim, ring.dtype, ring.position, ring.form
            )

    return plant


def see_one_less(backend: HostBackend) -> None:
    """The mask hides the newest position, or shows one too many before the ring is full."""

    def shifted(method: Any, positions: Tensor, run: Run, *, wide: bool) -> Any:
        look = method(positions, run, wide=wide)
        mask = look.mask.roll(1, -1)
        return replace(look, mask=mask)

    wrap(model_of(backend).transformer, "_look", shifted)


def swap_rows(backend: HostBackend) -> None:
    """Two places of a tick read and write each other's rows."""

    def swapped(method: Any, *given: Any) -> PackedStep:
        step: PackedStep = method(*given)
        if len(step.at) > 1:
            step.at = step.at.clone()
            step.at[:2] = step.at[:2].flip(0)
        return step

    wrap(pipeline_of(backend), "step", swapped)


FAULTS: dict[str, Callable[[HostBackend], None]] = {
    "a ring off by a slot": with_ring(LateRing),
    "scales of another head": with_ring(OthersScales),
    "a mask off by one": see_one_less,
    "rows swapped": swap_rows,
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_noise_of_rounding_passes(form: str, seed: int) -> None:
    backends = two_backends(SIZE, int8=form == "int8", rows=ROWS, attention="torch")
    add_noise(backends[1])
    found = compare(backends, TICKS, BOUNDS[form], seed)
    assert found.wrong == []
    assert found.ticks == TICKS
    assert found.errors["hidden"] > 1e-5  # the noise was there
    assert found.certain > found.choices / 3


@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(form: str, fault: str) -> None:
    backends = two_backends(SIZE, int8=form == "int8", rows=ROWS, attention="torch")
    FAULTS[fault](backends[1])
    assert not compare(backends, TICKS, BOUNDS[form]).is_same


def test_interpreted_kernels_with_a_fault_are_caught() -> None:
    checks = Path(__file__).parent / "interpreted" / "check_parity.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_a_choice_is_certain_where_no_logit_can_change_it() -> None:
    logits, silent = torch.tensor([3.0, 2.0, 1.9, -5.0]), torch.zeros(4)
    assert is_certain(logits, 0.4, (0.0, 0), silent, 0)
    assert not is_certain(logits, 0.6, (0.0, 0), silent, 0)
    assert is_certain(logits, 0.4, (0.5, 0), silent, 0)
    assert is_certain(logits, 0.01, (1.0, 2), torch.tensor([0.0, 3.0, 9.0, 0.0]), 1)
    assert not is_certain(logits, 0.1, (1.0, 2), torch.tensor([0.0, 3.0, 9.0, 0.0]), 1)  # of the top two

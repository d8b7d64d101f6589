"""The published sizes with random weights: their arithmetic equals the allocation."""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.modules.layers import weight_bytes
from lab.bench.gpu_models import (
    Form,
    empty_modules,
    make_modules,
    model_spec,
    published_sizes,
    reads,
    small_size,
)

CPU = torch.device("cpu")
COMPUTE = Form.of(is_int8=False)
INT8 = Form.of(is_int8=True)


@pytest.mark.parametrize(
    ("name", "parameters", "kv_mb"),
    [("moshi-7b", 7.688, 1573), ("stt-1b", 0.989, 98), ("tts-1.6b", 1.83, 66)],
)
def test_the_published_sizes_are_what_they_are(name: str, parameters: float, kv_mb: int) -> None:
    found = reads(published_sizes()[name], COMPUTE)
    mimi_bytes = weight_bytes(empty_modules(published_sizes()[name], COMPUTE)[0])
    assert (found.resident_bytes - mimi_bytes) / 2e9 == pytest.approx(parameters, rel=0.004)
    assert found.kv_bytes_per_frame * found.context / 1e6 == pytest.approx(kv_mb, rel=0.01)


def test_int8_reads_half_and_a_full_ring_more_than_an_empty_one() -> None:
    moshi = published_sizes()["moshi-7b"]
    full, int8 = reads(moshi, COMPUTE), reads(moshi, INT8)
    assert 0.5 < int8.weights_bytes / full.weights_bytes < 0.6
    assert 0.5 < int8.kv_bytes_per_frame / full.kv_bytes_per_frame < 0.55
    assert int8.tick_bytes(64, 3000) > 64 * 0.8e9
    assert int8.tick_bytes(64, 1) < int8.weights_bytes + 64 * 20e6
    assert int8.tick_bytes(1, 9000) == int8.tick_bytes(1, 3000)


@pytest.mark.parametrize("name", ["moshi-7b", "stt-1b", "tts-1.6b"])
def test_the_arithmetic_agrees_with_what_is_allocated(name: str) -> None:
    size = small_size(published_sizes()[name])
    form = Form.of(is_int8=True, dtype=torch.float32)
    mimi, generator = make_modules(size, form, CPU)
    spec = model_spec(size)
    backend = HostBackend(spec, TorchFrames(spec, mimi, generator), slots=2)
    found = reads(size, form)
    assert found.resident_bytes == pytest.approx(
        weight_bytes(mimi) + weight_bytes(generator.model), rel=0.002
    )
    sampling_bytes = 256 * 8 + 35 * 21 * 8
    assert backend.state_bytes() // 2 == pytest.approx(found.state_bytes, abs=sampling_bytes)


def test_random_norms_are_ones() -> None:
    _, generator = make_modules(small_size(published_sizes()["moshi-7b"]), COMPUTE, CPU)
    norms = [tensor for name, tensor in generator.model.state_dict().items() if name.endswith("alpha")]
    assert norms
    assert all((norm == 1).all() for norm in norms)

"""The GPU benchmark where there is none: it says so, and its arithmetic is that of the published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from antiphon.backends.host import HostBackend
from antiphon.backends.torch.frames import TorchFrames
from antiphon.backends.torch.modules.linear import weight_bytes
from lab.bench import gpu_capacity
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
COMPUTE = Form(int8_weights=False, int8_kv=False, dtype=torch.bfloat16)
INT8 = Form(int8_weights=True, int8_kv=True, dtype=torch.bfloat16)
WORDS = ("--quick", "--weights", "int8", "--kv", "int8", "--batch", "2", "--context", "full")


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
    form = Form(int8_weights=True, int8_kv=True, dtype=torch.float32)
    mimi, generator = make_modules(size, form, CPU)
    spec = model_spec(size)
    backend = HostBackend(spec, TorchFrames(spec, mimi, generator), slots=2)
    found = reads(size, form)
    assert found.resident_bytes == pytest.approx(
        weight_bytes(mimi) + weight_bytes(generator.model), rel=0.002
    )
    sampling_bytes = 256 * 8 + 35 * 21 * 8
    assert backend.state_bytes() // 2 == pytest.approx(found.state_bytes, abs=sampling_bytes)


def test_without_a_gpu_it_says_so_and_can_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--model", "moshi-7b", "--out", str(tmp_path)]
    assert gpu_capacity.main(words) == 0
    assert "no GPU here" in capsys.readouterr().err
    values = json.loads((tmp_path / "gpu-capacity.json").read_text())
    assert values["device"] is None
    assert list(values["attempts"]) == [
        "ours: moshi-7b, shrunk, weights int8, kv int8, batch 2, full",
        "upstream: moshi-7b, shrunk, weights float32, kv float32, batch 2, any",
    ]
    for found in values["attempts"].values():
        assert set(found["times"]) == {"tick", "encode", "lm", "decode"}
        assert "memory_bytes" not in found
        assert "launches" not in found
    text = (tmp_path / "gpu-capacity.md").read_text()
    assert "No GPU" in text
    assert "| moshi-7b | int8 | int8 | 128 | full |" in text
    assert all(
        line.endswith("| not measured |") for line in text.splitlines() if line.startswith("| moshi-7b")
    )
    assert (tmp_path / "gpu-capacity.png").read_bytes().startswith(b"\x89PNG")
    assert gpu_capacity.main([*words, "--resume"]) == 0
    assert json.loads((tmp_path / "gpu-capacity.json").read_text())["attempts"] == values["attempts"]


def test_what_does_not_fit_says_so_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 TiB.\nand more")

    monkeypatch.setattr(gpu_capacity, "measure_ours", refuse)
    words = [*WORDS, "--model", "stt-1b", "--no-upstream", "--out", str(tmp_path)]
    assert gpu_capacity.main(words) == 0
    assert "| CUDA out of memory. Tried to allocate 2 TiB. |" in (tmp_path / "gpu-capacity.md").read_text()


def test_what_was_not_brought_along_says_so_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'moshi'")

    monkeypatch.setattr(gpu_capacity, "measure_upstream", refuse)
    assert gpu_capacity.main([*WORDS, "--model", "moshi-7b", "--out", str(tmp_path)]) == 0
    assert "| No module named 'moshi' |" in (tmp_path / "gpu-capacity.md").read_text()


def test_a_batch_that_does_not_fit_is_named_with_its_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory is asked without the weights of the form before."""
    dropped: list[bool] = []
    size = published_sizes()["moshi-7b"]

    def free_bytes(_: object) -> tuple[int, int]:
        return (85_000_000_000 if dropped else 70_000_000_000), 0

    monkeypatch.setattr(torch.cuda, "mem_get_info", free_bytes)
    options = gpu_capacity.arguments(
        ["--weights", "int8", "--kv", "int8", "--batch", "64", "--batch", "128", "--no-upstream"]
    )
    found = gpu_capacity.cases(options, [size], torch.device("cuda"), lambda: dropped.append(True))
    assert {case.batch for case in found} == {64}
    lost = capsys.readouterr().err
    assert lost.startswith("moshi-7b, batch 128: left out, 83 rows of ")
    assert "into 85,000,000,000" in lost


def test_random_norms_are_ones() -> None:
    _, generator = make_modules(small_size(published_sizes()["moshi-7b"]), COMPUTE, CPU)
    norms = [tensor for name, tensor in generator.model.state_dict().items() if name.endswith("alpha")]
    assert norms
    assert all((norm == 1).all() for norm in norms)

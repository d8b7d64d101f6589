"""A card's facts about model, machine and memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import Manifest, QuantizationRecipe
from antiphon_quantize.bench.subject import (
    Subject,
    calibration_words,
    describe,
    describe_hardware,
    device_bytes,
    format_words,
    load_subject,
    memory_of,
    nvidia_driver,
    peak_bytes,
    quantization_words,
)
from tests.support.null_backend import NullBackend


def rounded(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    assert isinstance(checkpoint.manifest, Manifest)
    recipe = replace(QuantizationRecipe("int8-weight-per-channel", 8), **changes)
    return replace(checkpoint, manifest=replace(checkpoint.manifest, quantization=recipe, backends={}))


def test_how_it_was_made_smaller_and_on_what() -> None:
    checkpoint = load_checkpoint("echo")
    info = NullBackend(checkpoint.spec, 1).info
    running = replace(info, quantization="weights-int8")
    assert quantization_words(checkpoint, info) == "none"
    assert quantization_words(checkpoint, running) == "run as weights-int8"
    assert calibration_words(checkpoint, info) == "none"
    plain = rounded(checkpoint)
    assert quantization_words(plain, info) == "int8-weight-per-channel (8 bits)"
    assert calibration_words(plain, info) == "not stated in its manifest"
    assert calibration_words(rounded(checkpoint, tool="antiphon quantize 1.0"), info) == "none"
    options = {"recipe": "gptq", "calibration": "4 recordings"}
    named = rounded(checkpoint, group_size=32, bits=4, options=options)
    assert quantization_words(named, running) == (
        "int8-weight-per-channel (4 bits, groups of 32, recipe gptq), run as weights-int8"
    )
    assert calibration_words(named, info) == "4 recordings"


def test_rounded_graphs_say_nothing_of_the_weights_beside_them() -> None:
    whole = load_checkpoint("echo")
    recipe = rounded(whole).quantization_for("onnx")
    assert set(whole.backends) == {"onnx"}
    assert whole.manifest is not None
    checkpoint = replace(whole, manifest=replace(whole.manifest, quantization=recipe))
    info = NullBackend(checkpoint.spec, 1).info
    assert quantization_words(checkpoint, replace(info, name="torch")) == "none"
    assert quantization_words(checkpoint, replace(info, name="onnx")) == "int8-weight-per-channel (8 bits)"


def test_what_its_files_are() -> None:
    checkpoint = load_checkpoint("echo")
    info = NullBackend(checkpoint.spec, 1).info
    assert format_words(checkpoint, info) == "safetensors, antiphon.json"
    assert format_words(replace(checkpoint, manifest=None), info) == "safetensors, published layout"
    assert format_words(checkpoint, replace(info, name="onnx")) == "ONNX graphs"
    facts = describe(checkpoint, info, 3)
    assert facts.model.file_bytes == checkpoint.file("mimi").stat().st_size
    graphs = [checkpoint.file(form.file) for form in checkpoint.graphs.values()]
    running = replace(info, name="onnx")
    assert describe(checkpoint, running, 3).model.file_bytes == sum(path.stat().st_size for path in graphs)
    assert (facts.model.name, facts.model.kind, facts.hardware.threads) == ("echo", "codec", 3)


def test_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon_quantize.bench.subject.usable_cores", lambda: 3)
    hardware = describe_hardware("cpu", 1)
    assert hardware.device
    assert hardware.count == 3
    assert hardware.driver.startswith("none (")
    cuda = SimpleNamespace(get_device_name=lambda device: f"H200 as {device}")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    gpu = describe_hardware("cuda:1", 1)
    assert (gpu.device, gpu.count) == ("H200 as cuda:1", 1)
    monkeypatch.delitem(sys.modules, "torch")
    assert describe_hardware("cuda:1", 1).device == "cuda:1"


def test_what_torch_reserved_on_a_gpu_counts_where_it_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: True, max_memory_reserved=lambda device: 123)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert device_bytes("cuda:0") == 123
    assert device_bytes("cpu") is None
    cuda.is_initialized = lambda: False
    assert device_bytes("cuda:0") is None
    monkeypatch.delitem(sys.modules, "torch")
    assert device_bytes("cuda:0") is None


def test_the_driver_is_read_where_it_says_so(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert nvidia_driver(file) == "unknown"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 2025\nGCC 12\n")
    assert nvidia_driver(file) == "NVIDIA 580.95.05"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n")
    assert nvidia_driver(file) == "NVIDIA 570.86.15"
    file.write_text("nothing of the kind\n")
    assert nvidia_driver(file) == "unknown"


def test_peak_memory_is_the_most_there_was(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t    1234 kB\nVmRSS:\t  100 kB\n")
    assert peak_bytes(status) == 1234 * 1024
    assert peak_bytes(tmp_path / "missing") > 1_000_000
    assert peak_bytes() > 10_000_000


def test_what_a_backend_says_of_its_memory_is_kept() -> None:
    info = NullBackend(load_checkpoint("echo").spec, 1).info
    memory = memory_of(info, lambda: 77)
    assert (memory.peak_rss, memory.device, memory.weights) == (77, None, 0)
    silent = memory_of(replace(info, memory={}), lambda: 77)
    assert (silent.weights, silent.state_per_row) == (None, None)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_subject_is_loaded_with_its_options(threads: int) -> None:
    subject = Subject("e", "echo", "onnx", options={"threads": threads})
    backend, facts = load_subject(subject, 2, lambda done, total, what: None)
    try:
        assert (backend.info.slots, facts.backend, facts.hardware.threads) == (2, "onnx", threads)
        assert {"antiphon", "python", "onnxruntime"} <= facts.versions.keys()
    finally:
        backend.close()

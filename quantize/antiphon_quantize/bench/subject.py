"""One model on one backend: loads it, warms it up, and describes it with all facts of a card except the
measured numbers.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon import __version__
from antiphon.backends.base import Backend, BackendInfo, Progress
from antiphon.backends.machine import cpu_name, model_threads, process_bytes
from antiphon.backends.registry import make_backend
from antiphon.cores import usable_cores
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon_quantize.bench.card import (
    HardwareFacts,
    MeasuredMemory,
    ModelFacts,
    QuantizationFacts,
    SubjectFacts,
)

NONE = "none"
NOT_TOLD = "not stated in its manifest"


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject of a measurement.

    ``label`` is unique in a run; ``backend`` is never auto.
    """

    label: str
    model: str
    backend: str
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def load_subject(subject: Subject, slots: int, progress: Progress) -> tuple[Backend, SubjectFacts]:
    """Load a subject's backend with ``slots`` rows and warm it up; return it with the facts of the model.

    Raises:
        AntiphonError: it cannot be loaded or run.
    """
    checkpoint = load_checkpoint(subject.model)
    options = dict(subject.options)
    backend = make_backend(subject.backend, checkpoint, slots=slots, device=subject.device, options=options)
    backend.warm_up(progress)
    threads = backend.info.cpu_threads or model_threads(options.get("threads"))
    return backend, describe(checkpoint, backend.info, threads)


def describe(checkpoint: Checkpoint, info: BackendInfo, threads: int) -> SubjectFacts:
    """The facts of a checkpoint that runs on the backend of ``info``."""
    spec = checkpoint.spec
    return SubjectFacts(
        model=ModelFacts(
            name=spec.name,
            kind=spec.kind.value,
            parameters=spec.parameters,
            format=format_words(checkpoint, info),
            file_bytes=sum(checkpoint.files[role].stat().st_size for role in weight_roles(checkpoint, info)),
        ),
        hardware=describe_hardware(info.device, threads),
        quantization=QuantizationFacts(
            quantization_words(checkpoint, info), calibration_words(checkpoint, info)
        ),
        backend=info.name,
        dtype=info.dtype,
        frame_ms=spec.frame_ms,
        versions={"antiphon": __version__, "python": platform.python_version(), **info.versions},
    )


def weight_roles(checkpoint: Checkpoint, info: BackendInfo) -> list[str]:
    """The roles of the files that a backend reads its weights from."""
    form = checkpoint.backends.get(info.name)
    roles = ("lm", "mimi") if form is None else form.files
    return [role for role in roles if role in checkpoint.files]


def format_words(checkpoint: Checkpoint, info: BackendInfo) -> str:
    """The format of a model's files."""
    if info.name == "onnx":
        return "ONNX graphs"
    layout = "published layout" if checkpoint.manifest is None else "antiphon.json"
    return f"safetensors, {layout}"


def quantization_words(checkpoint: Checkpoint, info: BackendInfo) -> str:
    """Text on the rounding of the weights (from the manifest) and their format at run time (from the
    backend).
    """
    recipe = checkpoint.quantization_for(info.name)
    made = NONE
    if recipe is not None:
        named = recipe.options.get("recipe")
        shape = f"{recipe.bits} bits" + (f", groups of {recipe.group_size}" if recipe.group_size else "")
        made = f"{recipe.scheme} ({shape}" + (f", recipe {named})" if named else ")")
    if info.quantization == NONE:
        return made
    return f"run as {info.quantization}" if made == NONE else f"{made}, run as {info.quantization}"


def calibration_words(checkpoint: Checkpoint, info: BackendInfo) -> str:
    """The calibration of a model's quantization, as ``antiphon quantize`` recorded it."""
    recipe = checkpoint.quantization_for(info.name)
    if recipe is None:
        return NONE
    is_ours = recipe.tool.startswith("antiphon quantize")
    return str(recipe.options.get("calibration") or (NONE if is_ours else NOT_TOLD))


def describe_hardware(device: str, threads: int) -> HardwareFacts:
    """Facts of the GPU that ``device`` names, or of this machine's processors."""
    if not device.startswith("cuda"):
        driver = f"none ({platform.system()} {platform.release()})"
        return HardwareFacts(cpu_name(), usable_cores(), driver, threads)
    torch = sys.modules.get("torch")  # onnx runs on GPUs without torch, and has no name for them
    name = device if torch is None else str(torch.cuda.get_device_name(device))
    return HardwareFacts(name, 1, nvidia_driver(), threads)


def nvidia_driver(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's kernel driver, or "unknown"."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", file.read_text())
    except OSError:
        return "unknown"
    return f"NVIDIA {found[1]}" if found else "unknown"


def memory_of(info: BackendInfo, peak_rss: Callable[[], int] | None = None) -> MeasuredMemory:
    """The largest memory of this process and of its device, with the sizes that the backend reports."""
    return MeasuredMemory(
        peak_rss=(peak_rss or peak_bytes)(),
        device=device_bytes(info.device),
        weights=info.memory.get("weights"),
        state_per_row=info.memory.get("state_per_row"),
    )


def peak_bytes(status: Path = Path("/proc/self/status")) -> int:
    """The largest memory of this process so far.

    ``ru_maxrss`` is used only if there is no other way, because on Linux a child process starts with the
    value of its parent.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else process_bytes()


def device_bytes(device: str) -> int | None:
    """The most bytes that torch has reserved on a GPU; None if the model uses no GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_reserved(device))

"""INT8 checkpoints for the torch backend: a published language model with some matrices rounded by torchao.

Names stay the published ones. A rounded matrix ``X`` is int8 ``[out, in]``, and ``X_scale`` float32
``[out, 1]`` stands beside it: the two tensors of torchao's ``Int8Tensor``, whose value is their product.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from antiphon.backends.torch.int8 import Int8Linear
from antiphon.errors import UnsupportedError
from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.recipe import Recipe
from antiphon_quantize.tensor_file import TensorFile, tensor_bytes, writing_tensors

Rounder = Callable[[Tensor], tuple[Tensor, Tensor]]
Progress = Callable[[int, int, str], None]

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls torch's dtypes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a file's tensors: ``before`` and ``after``, and the names of those to be rounded."""

    before: Mapping[str, TensorInfo]
    after: Mapping[str, TensorInfo]
    chosen: frozenset[str]

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of all tensors, before and after."""
        before, after = (sum(map(tensor_bytes, part.values())) for part in (self.before, self.after))
        return before, after


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far the rounded matrices are from the originals, relative to them (norms): mean, and the worst."""

    mean_error: float
    worst_error: float
    worst_name: str


def make_plan(path: Path, recipe: Recipe) -> Plan:
    """Say what the recipe makes of a published language model, from the file's header alone.

    Raises:
        UnsupportedError: the file is INT8 already, or the recipe chooses nothing in it.
        CheckpointFormatError: it is no safetensors file.
    """
    before = read_header(path)
    rounded = sum(info.dtype == "I8" for info in before.values())
    if rounded:
        raise UnsupportedError(f"{path} is INT8 already, in {rounded} of its {len(before)} tensors")
    chosen = frozenset(
        name
        for name, info in before.items()
        if name.endswith("weight") and len(info.shape) == 2 and info.is_floating and recipe.chooses(name)
    )
    if not chosen:
        raise UnsupportedError(f"the recipe chooses none of the {len(before)} tensors of {path}")
    after = dict(before)
    for name in chosen:
        after[name] = TensorInfo("I8", before[name].shape)
        after[f"{name}_scale"] = TensorInfo("F32", (before[name].shape[0], 1))
    return Plan(before, after, chosen)


def write_rounded(source: Path, target: Path, plan: Plan, progress: Progress) -> Rounding:
    """Write the planned file, one tensor in memory at a time."""
    rounder = torchao_rounder()
    errors: dict[str, float] = {}
    with safe_open(source, framework="pt") as file, writing_tensors(target, plan.after) as written:
        for done, name in enumerate(plan.before):
            progress(done, len(plan.before), name)
            tensor = file.get_tensor(name)
            if name not in plan.chosen:
                put(written, name, tensor)
                continue
            rounded, scale = rounder(tensor)
            put(written, name, rounded)
            put(written, f"{name}_scale", scale)
            errors[name] = float((rounded * scale - tensor.float()).norm() / tensor.float().norm())
    progress(len(plan.before), len(plan.before), target.name)
    worst_name = max(errors, key=errors.__getitem__)
    return Rounding(sum(errors.values()) / len(errors), errors[worst_name], worst_name)


def put(file: TensorFile, name: str, tensor: Tensor) -> None:
    """Write one tensor into a file that planned it (a ValueError says what is not as planned)."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    file.put(name, TensorInfo(DTYPES[tensor.dtype], tuple(tensor.shape)), data)


def torchao_rounder() -> Rounder:
    """The function that rounds a matrix ``[out, in]`` to int8 and float32 scales ``[out, 1]``."""
    logging.disable(logging.WARNING)  # importing torchao warns of kernels for other machines
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    finally:
        logging.disable(logging.NOTSET)

    def round_matrix(weight: Tensor) -> tuple[Tensor, Tensor]:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        with torch.no_grad():
            quantize_(layer, Int8WeightOnlyConfig(version=2))
        linear = Int8Linear.from_torchao(layer.weight)
        del layer.weight  # torchao ties the layer into a cycle, and the next matrix is not to wait for gc
        return linear.weight.data, linear.scale.data[:, None]

    return round_matrix

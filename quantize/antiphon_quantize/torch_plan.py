"""The plan of a recipe for a language model's file, made from the file's header only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphon.backends.torch.weights.lm_weights import renamed
from antiphon.errors import UnsupportedError
from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.recipe import Recipe
from antiphon_quantize.tensor_file import tensor_bytes
from antiphon_quantize.torch_formats import format_of
from antiphon_quantize.torch_methods import PRESCALED, STEPPED


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """What becomes of a file's tensors: ``before`` and ``after``, and the linears in each to be rounded.

    A tensor is one linear, or as many as the steps of the depformer that it stacks.
    """

    before: Mapping[str, TensorInfo]
    after: Mapping[str, TensorInfo]
    chosen: Mapping[str, tuple[str, ...]]

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of all tensors, before and after."""
        before, after = (sum(map(tensor_bytes, part.values())) for part in (self.before, self.after))
        return before, after


def make_plan(path: Path, recipe: Recipe, sets: int = 1) -> TorchPlan:
    """Say what the recipe makes of a published language model, from the file's header only.

    ``sets`` is how many sets of depformer weights the file holds.

    Raises:
        UnsupportedError: the file was rounded already, or the recipe chooses nothing in it.
        CheckpointFormatError: it is no safetensors file.
    """
    before, form = read_header(path), format_of(recipe)
    rounded = sum(f"{name}_scale" in before or f"{name}_scb" in before for name in before)
    if rounded:
        raise UnsupportedError(f"{path} was rounded already, in {rounded} of its {len(before)} tensors")
    fitting = [
        name
        for name, info in before.items()
        if name.endswith("weight")
        and len(info.shape) == 2
        and info.is_floating
        and recipe.chooses(name)
        and form.fits(info.shape)
    ]
    if not fitting:
        raise UnsupportedError(f"the recipe chooses none of the {len(before)} tensors of {path}")
    chosen, after = {}, dict(before)
    for name in fitting:
        shape = before[name].shape
        parts = renamed(name, torch.empty(shape, device="meta"), sets)
        chosen[name] = tuple(part.removesuffix(".weight") for part, _ in parts)
        after |= {f"{name}{ending}": info for ending, info in form.after(shape).items()}
        if recipe.method in PRESCALED:
            after[f"{name}_prescale"] = TensorInfo("F32", (len(chosen[name]), shape[1]))
        if recipe.method in STEPPED:
            after[f"{name}_step"] = TensorInfo("F32", (len(chosen[name]), 1))
    return TorchPlan(before, after, chosen)

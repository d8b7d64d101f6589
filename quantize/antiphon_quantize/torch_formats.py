"""The forms a matrix is rounded to for the torch backend, and torchao's rounding to each.

``X`` becomes int8, uint8 (two INT4) or float8_e4m3, and ``X_scale`` stands next to it; see
:mod:`antiphon.backends.torch.quantised.stored` for what else may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.torch.quantised.int4 import pack_nibbles
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon.backends.torch.quantised.stored import VALUES
from antiphon.errors import CheckpointFormatError
from antiphon.models.weights import TensorInfo
from antiphon_quantize.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix as it is stored: ``weight``, ``scale`` float ``[out, 1]`` or ``[out, blocks]``.

    The input is multiplied by ``prescale`` float32 ``[1, in]`` first, and rounded to multiples of ``step``
    float32 ``[1, 1]``, where they are not None.
    """

    weight: Tensor
    scale: Tensor
    prescale: Tensor | None = None
    step: Tensor | None = None

    def values(self) -> Tensor:
        """What the matrix is now, for inputs as they are: float32 ``[out, in]``."""
        values = VALUES[self.weight.dtype](self.weight, self.scale)
        return values if self.prescale is None else values * self.prescale

    def tensors(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the matrix ``name``, by their names in the file."""
        yield name, self.weight
        for part, tensor in (("scale", self.scale), ("prescale", self.prescale), ("step", self.step)):
            if tensor is not None:
                yield f"{name}_{part}", tensor


def stacked(parts: list[Rounded]) -> Rounded:
    """The matrices of several steps as the one they were cut from."""

    def joined(tensors: list[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in tensors if tensor is not None]
        return torch.cat(found) if found else None

    weight, scale = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "scale"))
    return Rounded(
        weight, scale, joined([part.prescale for part in parts]), joined([part.step for part in parts])
    )


Rounder = Callable[[Tensor], Rounded]
"""Rounds a matrix ``[out, in]`` on its own, each weight to the nearest value there is."""


@dataclass(frozen=True, slots=True)
class Format:
    """A form of weights: its ``dtype`` in the file, and its scales' ``scale_dtype``.

    ``block`` is how many weights of a row share a scale, None for all of them; ``packed`` how many are in
    one number of the file.
    """

    name: str
    dtype: str
    scale_dtype: str
    block: int | None
    packed: int
    make_rounder: Callable[[Recipe], Rounder]

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of this shape can be rounded: its rows have to consist of whole blocks."""
        return self.block is None or shape[1] % self.block == 0

    def after(self, shape: tuple[int, ...]) -> dict[str, TensorInfo]:
        """What a matrix becomes, by what its names end with."""
        rows, width = shape
        blocks = 1 if self.block is None else width // self.block
        weight = TensorInfo(self.dtype, (rows, width // self.packed))
        return {"": weight, "_scale": TensorInfo(self.scale_dtype, (rows, blocks))}


def format_of(recipe: Recipe) -> Format:
    """The form a recipe rounds to.

    Raises:
        CheckpointFormatError: there is none of that name, or INT4 in blocks of an odd number.
    """
    formats: Mapping[str, Format] = {
        "int8": Format("int8", "I8", "F32", None, 1, _int8_rounder),
        "int4": Format("int4", "U8", "F16", recipe.block, 2, _int4_rounder),
        "fp8": Format("fp8", "F8_E4M3", "F32", None, 1, _fp8_rounder),
    }
    if recipe.format not in formats:
        raise CheckpointFormatError(f"format is '{recipe.format}'; it can be {', '.join(formats)}")
    if recipe.format == "int4" and (recipe.block < 1 or recipe.block % 2):
        raise CheckpointFormatError(f"blocks of {recipe.block} weights; INT4 needs an even number")
    return formats[recipe.format]


@contextmanager
def quietly() -> Iterator[None]:
    """Without torchao's warnings of kernels for other machines, which come with its import."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def int4_config(block: int, *, search: bool) -> Any:
    """torchao's configuration of INT4 in blocks; ``search`` looks for each scale (Badri and Shaji 2023)."""
    with quietly():
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup
        from torchao.quantization.quantize_.workflows import IntxChooseQParamsAlgorithm as Choice
    return IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(block),
        intx_choose_qparams_algorithm=Choice.HQQ_SCALE_ONLY if search else Choice.AFFINE,
    )


def _int8_rounder(recipe: Recipe) -> Rounder:  # noqa: ARG001
    with quietly():
        from torchao.quantization import Int8WeightOnlyConfig
    config = Int8WeightOnlyConfig(version=2)

    def round_matrix(weight: Tensor) -> Rounded:
        linear = Int8Linear.from_torchao(_torchao(weight, config))
        return Rounded(linear.weight.data, linear.scale.data[:, None])

    return round_matrix


def _int4_rounder(recipe: Recipe) -> Rounder:
    config = int4_config(recipe.block, search=recipe.search)

    def round_matrix(weight: Tensor) -> Rounded:
        made: Any = _torchao(weight.float(), config)
        return Rounded(pack_nibbles(made.qdata), made.scale.half())

    return round_matrix


def _fp8_rounder(recipe: Recipe) -> Rounder:  # noqa: ARG001
    with quietly():
        from torchao.quantization import Float8WeightOnlyConfig
    config = Float8WeightOnlyConfig()

    def round_matrix(weight: Tensor) -> Rounded:
        made: Any = _torchao(weight.float(), config)
        return Rounded(made.qdata, made.scale.float())

    return round_matrix


def _torchao(weight: Tensor, config: Any) -> Tensor:
    """The tensor that torchao makes of a matrix."""
    from torchao.quantization import quantize_

    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        quantize_(layer, config)
    made: Tensor = layer.weight
    del layer.weight  # torchao ties the layer into a cycle, and the next matrix is not to wait for gc
    return made

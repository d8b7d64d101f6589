"""A torch language model too large for bfloat16: seeded, its layers in few bits from the start."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Final

import torch
from torch import nn

from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.backends.torch.quantised.int4 import Int4Linear
from antiphon.backends.torch.quantised.int8 import Int8Linear, follows_recipe

INT4_BLOCK: Final = 32
"""Weights to a scale, as in the recipe for torch; fewer in a row that it does not divide."""


def seeded_lm(config: Mapping[str, Any], bits: int, compute: Compute) -> LanguageModel:
    """A model as the torch backend runs it on a CPU: layers in INT8 or INT4, all else as ``compute`` says.

    A layer is drawn and laid out for the CPU before the next one, so memory holds the model once.
    """
    with torch.device("meta"):
        model = LanguageModel(config, steps=config["dep_q"], compute=compute)
    generator = torch.Generator().manual_seed(0)
    for name, child in list(model.named_modules()):
        if isinstance(child, Linear) and follows_recipe(name):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, _rounded(child, bits, generator))
    for child in model.modules():
        for name, parameter in list(child.named_parameters(recurse=False)):
            if parameter.is_meta:
                setattr(child, name, nn.Parameter(_drawn(parameter, generator), requires_grad=False))
    return model.prepare(pack=True)


def _rounded(linear: Linear, bits: int, generator: torch.Generator) -> Int8Linear | Int4Linear:
    rows, columns = linear.out_features, linear.in_features
    loudness = columns**-0.5
    if bits == 8:
        weight = torch.empty(rows, columns, dtype=torch.int8).random_(-127, 128, generator=generator)
        int8 = Int8Linear(weight, torch.full((rows,), loudness / 127))
        int8.pack()
        return int8
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8).random_(0, 256, generator=generator)
    blocks = columns // gcd(columns, INT4_BLOCK)
    int4 = Int4Linear(packed, torch.full((rows, blocks), loudness / 8))
    int4.pack()
    return int4


def _drawn(parameter: nn.Parameter, generator: torch.Generator) -> torch.Tensor:
    values = torch.empty(parameter.shape, dtype=parameter.dtype)
    if sum(extent > 1 for extent in values.shape) < 2:
        return values.fill_(1)
    return values.normal_(0, values.shape[-1] ** -0.5, generator=generator)

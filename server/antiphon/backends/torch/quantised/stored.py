"""Linears in the form their weight has in a file: INT8, INT4 or FP8, distinguished by dtype.

A weight ``X`` has its scales beside it, ``X_scale`` ``[out, 1]`` or, in blocks, ``[out, blocks]``; if its
input is scaled first, ``X_prescale`` ``[sets, in]``; if the input is rounded to a fixed step, ``X_step``
``[sets, 1]``. ``sets`` is 1, but where a tensor stacks the weights of several steps of the depformer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.linear import Linear
from antiphon.backends.torch.quantised.fp8 import Fp8Linear, fp8_values
from antiphon.backends.torch.quantised.int4 import Int4Linear, int4_values
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon.errors import CheckpointFormatError

Parts = dict[str, Tensor]

LAYERS: Mapping[torch.dtype, Callable[[Linear, Parts], nn.Module]] = {
    torch.int8: Int8Linear.like,
    torch.uint8: Int4Linear.like,
    torch.float8_e4m3fn: Fp8Linear.like,
}
"""By the dtype of the weight: what makes an empty layer in the place of a linear."""

VALUES: Mapping[torch.dtype, Callable[[Tensor, Tensor], Tensor]] = {
    torch.int8: lambda weight, scale: weight.float() * scale.reshape(-1, 1),
    torch.uint8: int4_values,
    torch.float8_e4m3fn: fp8_values,
}
"""By the dtype of the weight: its float32 values ``[out, in]``, given its scales."""

NAMES: Mapping[torch.dtype, str] = {torch.int8: "INT8", torch.uint8: "INT4", torch.float8_e4m3fn: "FP8"}
"""By the dtype of the weight: what it is called in messages."""

FORMATS: Mapping[type[nn.Module], str] = {Int8Linear: "int8", Int4Linear: "int4"}
"""What the weights of each kind of layer are called."""

BESIDE = ("scale", "prescale", "step")
"""What may lie beside a weight, by the ending of its name."""


def expect_stored(module: nn.Module, name: str, parts: Parts) -> None:
    """Put an empty layer for ``parts`` (``weight``, ``scale``, ...) in the place of the linear ``name``.

    Raises:
        CheckpointFormatError: there is none.
    """
    parent_name, _, own_name = name.rpartition(".")
    try:
        linear = module.get_submodule(name)
    except AttributeError:
        linear = module
    if not isinstance(linear, Linear):
        kind = NAMES[parts["weight"].dtype]
        raise CheckpointFormatError(f"the file has '{name}' as {kind}, but only linear layers can be")
    setattr(module.get_submodule(parent_name), own_name, LAYERS[parts["weight"].dtype](linear, parts))


def formats_of(module: nn.Module) -> list[str]:
    """The formats that weights of a module's linears have, each once: "int8", "int4"."""
    kinds = {type(child) for child in module.modules()}
    return [name for kind, name in FORMATS.items() if kind in kinds]

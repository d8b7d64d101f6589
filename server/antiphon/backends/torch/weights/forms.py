"""Which forms of weights a GPU runs: those that its kernels multiply as they are kept."""

from __future__ import annotations

from torch import nn

from antiphon.backends.torch.quantised.int4 import Int4Linear
from antiphon.backends.torch.quantised.int8 import Int8Linear
from antiphon.errors import UnsupportedError

RECIPE = "int8"
"""The recipe of ``antiphon quantize`` that a GPU runs."""


def slow_form(layer: nn.Module) -> str | None:
    """What of a linear's form no kernel multiplies, so that each tick expands it or rounds beside it."""
    if isinstance(layer, Int4Linear):
        return "INT4 weights"
    if not isinstance(layer, Int8Linear):
        return None
    if not layer.rounds_input:
        return "INT8 weights with inputs as they are (activations=compute)"
    if layer.step is not None:
        return "INT8 weights with a fixed step for inputs (int8-static)"
    return None if layer.prescale is None else "INT8 weights with scaled inputs (int8-smooth)"


def check_forms(name: str, model: nn.Module) -> None:
    """Raise unless a GPU's kernels multiply each linear of a model as it is kept.

    Raises:
        UnsupportedError: with the recipe that runs.
    """
    slow = [form for layer in model.modules() if (form := slow_form(layer)) is not None]
    if not slow:
        return
    raise UnsupportedError(
        f"{name} has {slow[0]} in {len(slow)} linears; a GPU multiplies INT8 whose inputs are rounded row by "
        f"row, and bfloat16: quantise the model with --recipe {RECIPE}, or serve it on a CPU"
    )

"""Ways to round a matrix that look at what it is multiplied with: AWQ, GPTQ, SmoothQuant.

Each takes the matrix ``[out, in]`` and rows of its inputs ``[n, in]``, recorded while the model listened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from antiphon.backends.torch.quantised.int4 import pack_nibbles
from antiphon.errors import CheckpointFormatError
from antiphon_quantize.recipe import Recipe
from antiphon_quantize.torch_formats import Format, Rounded, Rounder, int4_config, quietly

Method = Callable[[Tensor, Tensor, Rounder, Recipe], Rounded]

AWQ_STEPS = 20
"""Strengths of the scaling that AWQ tries, from none to all."""

AWQ_ROWS = 512
"""Rows it tries them on, taken evenly: each try multiplies all of them twice."""

SMOOTHNESS = 0.5
"""How much of the inputs' outliers SmoothQuant moves into the weights: its authors' choice."""

DAMPING, DAMPING_AT_AS_MANY = 0.01, 0.1
"""Added to the Hessian's diagonal, relative to its mean: the authors' choice for GPTQ, who have many times as
many rows as columns; and with as many. See :func:`damping`."""

_TINY = 1e-12


def awq(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:
    """Scale the columns that loud inputs meet, so that they are rounded more finely (Lin et al. 2023).

    torchao's search, in its own steps; the input is scaled back when it comes.
    """
    with quietly():
        from torchao.prototype.awq.core import AWQObserver
    observer = AWQObserver(weight, None, int4_config(recipe.block, search=False), AWQ_STEPS)
    observer.inputs.append(rows[:: -(-len(rows) // AWQ_ROWS)])
    scale: Tensor = observer.calculate_qparams()
    return replace(nearest(weight * scale), prescale=(1 / scale)[None])


def smoothquant(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:  # noqa: ARG001
    """Move half of the inputs' outliers into the weights (Xiao et al. 2022); rows keep their own scales."""
    with quietly():
        from torchao.prototype.smoothquant.core import SmoothQuantObserver
    observer = SmoothQuantObserver(weight, SMOOTHNESS)
    observer(rows)
    factor: Tensor = observer.calculate_qparams()[0].clamp_min(_TINY)
    return replace(nearest(weight * factor), prescale=(1 / factor)[None])


def smoothquant_static(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:
    """SmoothQuant, and inputs rounded to a fixed step: the loudest that was recorded is 127 of them."""
    rounded = smoothquant(weight, rows, nearest, recipe)
    assert rounded.prescale is not None
    loudest = (rows * rounded.prescale).abs().amax().clamp_min(_TINY)
    return replace(rounded, step=(loudest / 127.0).reshape(1, 1))


def gptq(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:  # noqa: ARG001
    """Round column by column, those to come making up for each error (Frantar et al. 2022, algorithm 1).

    Symmetric, one scale a block, chosen when its first column's turn comes. torchao's own wants CUDA.
    """
    weight, block = weight.float().clone(), recipe.block
    inverse = _inverse_factor(weight, rows)
    integers, scales = torch.empty_like(weight, dtype=torch.int8), []
    for start in range(0, weight.shape[1], block):
        end = start + block
        part, within = weight[:, start:end], inverse[start:end, start:end]
        scale = (part.abs().amax(dim=1, keepdim=True) / 7.5).half().float().clamp_min(2**-24)
        errors = torch.empty_like(part)
        for column in range(block):
            wanted = part[:, column : column + 1]
            whole = (wanted / scale).round().clamp(-8, 7)
            errors[:, column : column + 1] = (wanted - whole * scale) / within[column, column]
            integers[:, start + column : start + column + 1] = whole.to(torch.int8)
            part[:, column + 1 :] -= errors[:, column : column + 1] * within[column, column + 1 :]
        weight[:, end:] -= errors @ inverse[start:end, end:]
        scales.append(scale)
    return Rounded(pack_nibbles(integers), torch.cat(scales, dim=1).half())


def _inverse_factor(weight: Tensor, rows: Tensor) -> Tensor:
    """The upper Cholesky factor ``[in, in]`` of the inverse Hessian; columns never heard become 0."""
    hessian = rows.t() @ rows
    diagonal = hessian.diagonal()
    silent = diagonal == 0
    diagonal[silent] = 1.0
    weight[:, silent] = 0.0
    diagonal += damping(*rows.shape) * diagonal.mean()
    lower = torch.linalg.cholesky(hessian)
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper


def damping(rows: int, columns: int) -> float:
    """How much of the Hessian is not to be believed: the fewer rows were heard, the more.

    With an eighth as many rows as columns 0.01 makes GPTQ worse than rounding to the nearest, this does not.
    """
    return max(DAMPING, DAMPING_AT_AS_MANY * float((columns / rows) ** 1.5))


METHODS: Mapping[str, tuple[str, Method]] = {
    "awq": ("int4", awq),
    "gptq": ("int4", gptq),
    "smoothquant": ("int8", smoothquant),
    "smoothquant-static": ("int8", smoothquant_static),
}
"""By name: the form it is for, and what it does. "nearest", which needs no recording, is none of them."""

PRESCALED = frozenset({"awq", "smoothquant", "smoothquant-static"})
STEPPED = frozenset({"smoothquant-static"})


@dataclass(frozen=True, slots=True)
class Rounding:
    """A recipe's way to round: ``method`` None takes each weight to the nearest value."""

    format: Format
    nearest: Rounder
    method: Method | None
    recipe: Recipe

    def __call__(self, weight: Tensor, rows: Tensor | None) -> Rounded:
        """Round a matrix; ``rows`` None: nothing was heard of its inputs, so they are taken for equal."""
        if self.method is None:
            return self.nearest(weight)
        if rows is not None:
            with torch.no_grad():
                return self.method(weight.float(), rows.float(), self.nearest, self.recipe)
        silent = self.nearest(weight.float())
        is_prescaled, is_stepped = (self.recipe.method in names for names in (PRESCALED, STEPPED))
        ones = torch.ones(1, weight.shape[1]) if is_prescaled else None
        return replace(silent, prescale=ones, step=torch.ones(1, 1) if is_stepped else None)


def rounding_of(recipe: Recipe, form: Format) -> Rounding:
    """What a recipe does to a matrix.

    Raises:
        CheckpointFormatError: there is no such method, or it makes another form.
    """
    nearest = form.make_rounder(recipe)
    if recipe.method == "nearest":
        return Rounding(form, nearest, None, recipe)
    if recipe.method not in METHODS:
        raise CheckpointFormatError(f"method is '{recipe.method}'; it can be nearest, {', '.join(METHODS)}")
    made, method = METHODS[recipe.method]
    if made != form.name:
        raise CheckpointFormatError(f"{recipe.method} makes {made}, not {form.name}")
    return Rounding(form, nearest, method, recipe)

"""Rounds matrices for the torch backend: formats, methods, and the plan of a recipe for a file.

``X`` becomes int8, uint8 (two INT4) or float8_e4m3, with ``X_scale``; see
:mod:`antiphon.backends.torch.quantised` for other parts. AWQ, GPTQ and SmoothQuant use a matrix's inputs:
each gets the matrix ``[out, in]`` and rows of its inputs ``[n, in]``, which were recorded while the model
ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.torch.quantised import VALUES, pack_nibbles
from antiphon.backends.torch.weights import renamed
from antiphon.errors import CheckpointFormatError, UnsupportedError
from antiphon.models.weights import TensorInfo, read_header
from antiphon_quantize.recipe import Recipe
from antiphon_quantize.tensor_file import tensor_bytes


@dataclass(frozen=True, slots=True)
class Rounded:
    """A matrix in its stored form: ``weight``, ``scale`` float ``[out, 1]`` or ``[out, blocks]``.

    If ``prescale`` float32 ``[1, in]`` is given, the input is first multiplied by it. If ``step`` float32
    ``[1, 1]`` is given, the input is rounded to multiples of it.
    """

    weight: Tensor
    scale: Tensor
    prescale: Tensor | None = None
    step: Tensor | None = None

    def values(self) -> Tensor:
        """The matrix's current values, for unscaled inputs: float32 ``[out, in]``."""
        values = VALUES[self.weight.dtype](self.weight, self.scale)
        return values if self.prescale is None else values * self.prescale

    def tensors(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """The tensors of the matrix ``name``, by their names in the file."""
        yield name, self.weight
        for part, tensor in (("scale", self.scale), ("prescale", self.prescale), ("step", self.step)):
            if tensor is not None:
                yield f"{name}_{part}", tensor


def stacked(parts: list[Rounded]) -> Rounded:
    """Concatenate the matrices of several depformer steps to one stack."""

    def joined(tensors: list[Tensor | None]) -> Tensor | None:
        found = [tensor for tensor in tensors if tensor is not None]
        return torch.cat(found) if found else None

    weight, scale = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "scale"))
    return Rounded(
        weight, scale, joined([part.prescale for part in parts]), joined([part.step for part in parts])
    )


Rounder = Callable[[Tensor], Rounded]
"""Rounds a matrix ``[out, in]`` without inputs, each weight to the nearest value."""


@dataclass(frozen=True, slots=True)
class Format:
    """A storage format of weights: their ``dtype`` in the file, and the ``scale_dtype`` of their scales.

    ``block`` is the number of weights of a row that share a scale; None means the whole row; ``packed`` the
    number of weights in one number of the file.
    """

    name: str
    dtype: str
    scale_dtype: str
    block: int | None
    packed: int

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of this shape can be rounded: its rows must consist of whole blocks."""
        return self.block is None or shape[1] % self.block == 0

    def after(self, shape: tuple[int, ...]) -> dict[str, TensorInfo]:
        """The tensors of a rounded matrix, by their suffixes."""
        rows, width = shape
        blocks = 1 if self.block is None else width // self.block
        weight = TensorInfo(self.dtype, (rows, width // self.packed))
        return {"": weight, "_scale": TensorInfo(self.scale_dtype, (rows, blocks))}


def format_of(recipe: Recipe) -> Format:
    """The format that a recipe rounds to.

    Raises:
        CheckpointFormatError: the name is unknown, or INT4 has blocks of an odd size.
    """
    formats: Mapping[str, Format] = {
        "int8": Format("int8", "I8", "F32", None, 1),
        "int4": Format("int4", "U8", "F16", recipe.block, 2),
        "fp8": Format("fp8", "F8_E4M3", "F32", None, 1),
    }
    if recipe.format not in formats:
        raise CheckpointFormatError(f"format is '{recipe.format}'; it can be {', '.join(formats)}")
    if recipe.format == "int4" and (recipe.block < 1 or recipe.block % 2):
        raise CheckpointFormatError(f"blocks of {recipe.block} weights; INT4 needs an even number")
    return formats[recipe.format]


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress torchao's import warnings about kernels for other machines."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def int4_config(block: int, *, search: bool) -> Any:
    """torchao's configuration of INT4 in blocks; with ``search`` each scale is searched (Badri and Shaji
    2023)."""
    with quietly():
        from torchao.quantization import IntxWeightOnlyConfig, PerGroup
        from torchao.quantization.quantize_.workflows import IntxChooseQParamsAlgorithm as Choice
    return IntxWeightOnlyConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        granularity=PerGroup(block),
        intx_choose_qparams_algorithm=Choice.HQQ_SCALE_ONLY if search else Choice.AFFINE,
    )


def rounder_of(recipe: Recipe) -> Rounder:
    """torchao's rounding to a recipe's format, each weight to the nearest value."""
    with quietly():
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig
    if recipe.format == "int4":
        config: Any = int4_config(recipe.block, search=recipe.search)
    else:
        config = Int8WeightOnlyConfig(version=2) if recipe.format == "int8" else Float8WeightOnlyConfig()

    def round_matrix(weight: Tensor) -> Rounded:
        made: Any = _torchao(weight if recipe.format == "int8" else weight.float(), config)
        if recipe.format == "int4":
            return Rounded(pack_nibbles(made.qdata), made.scale.half())
        return Rounded(made.qdata, made.scale.float().reshape(-1, 1))

    return round_matrix


def _torchao(weight: Tensor, config: Any) -> Tensor:
    """The tensor that torchao makes from a matrix."""
    from torchao.quantization import quantize_

    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    with torch.no_grad():
        quantize_(layer, config)
    made: Tensor = layer.weight
    del layer.weight  # torchao's layer is in a reference cycle: free it before the next matrix, without gc
    return made


Method = Callable[[Tensor, Tensor, Rounder, Recipe], Rounded]

AWQ_STEPS = 20
"""Number of strengths of the scaling that AWQ tries, from none to all."""

AWQ_ROWS = 512
"""Number of rows in the trials, taken at even intervals. Each trial multiplies all of them twice."""

SMOOTHNESS = 0.5
"""Share of the inputs' outliers that SmoothQuant moves into the weights: as its authors chose."""

DAMPING, DAMPING_AT_AS_MANY = 0.01, 0.1
"""Added to the Hessian's diagonal, relative to its mean: the first value is that of GPTQ's authors, who have
many times as many rows as columns; the second is for as many rows as columns. See :func:`damping`.
"""

_TINY = 1e-12


def awq(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:
    """AWQ: scale columns with large inputs, so that they are rounded more finely (Lin et al. 2023).

    The search equals torchao's, with a different number of steps. At run time the input is scaled back.
    """
    with quietly():
        from torchao.prototype.awq.core import AWQObserver
    observer = AWQObserver(weight, None, int4_config(recipe.block, search=False), AWQ_STEPS)
    observer.inputs.append(rows[:: -(-len(rows) // AWQ_ROWS)])
    scale: Tensor = observer.calculate_qparams()
    return replace(nearest(weight * scale), prescale=(1 / scale)[None])


def smoothquant(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:  # noqa: ARG001
    """SmoothQuant: move half of the inputs' outliers into the weights (Xiao et al. 2022).

    Each row keeps its own scale.
    """
    with quietly():
        from torchao.prototype.smoothquant.core import SmoothQuantObserver
    observer = SmoothQuantObserver(weight, SMOOTHNESS)
    observer(rows)
    factor: Tensor = observer.calculate_qparams()[0].clamp_min(_TINY)
    return replace(nearest(weight * factor), prescale=(1 / factor)[None])


def smoothquant_static(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:
    """SmoothQuant with inputs rounded to a fixed step: the largest recorded input is 127 steps."""
    rounded = smoothquant(weight, rows, nearest, recipe)
    assert rounded.prescale is not None
    loudest = (rows * rounded.prescale).abs().amax().clamp_min(_TINY)
    return replace(rounded, step=(loudest / 127.0).reshape(1, 1))


def gptq(weight: Tensor, rows: Tensor, nearest: Rounder, recipe: Recipe) -> Rounded:  # noqa: ARG001
    """GPTQ: round by column, later columns compensating each error (Frantar et al. 2022, algorithm 1).

    The rounding is symmetric, with one scale per block, which is chosen at the block's first column.
    torchao's implementation needs CUDA.
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
    """The upper Cholesky factor ``[in, in]`` of the inverse Hessian; columns without input become 0."""
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
    """The damping of the Hessian, which increases with fewer recorded rows.

    If the rows are an eighth of the columns, the usual damping of 0.01 makes GPTQ worse than rounding to the
    nearest value; this damping does not.
    """
    return max(DAMPING, DAMPING_AT_AS_MANY * float((columns / rows) ** 1.5))


METHODS: Mapping[str, tuple[str, Method]] = {
    "awq": ("int4", awq),
    "gptq": ("int4", gptq),
    "smoothquant": ("int8", smoothquant),
    "smoothquant-static": ("int8", smoothquant_static),
}
"""For each method, its format and its function. The method "nearest", which needs no recording, is not in the
table.
"""

PRESCALED = frozenset({"awq", "smoothquant", "smoothquant-static"})
STEPPED = frozenset({"smoothquant-static"})


@dataclass(frozen=True, slots=True)
class Rounding:
    """A recipe's rounding; if ``method`` is None, each weight is rounded to the nearest value."""

    format: Format
    nearest: Rounder
    method: Method | None
    recipe: Recipe

    def __call__(self, weight: Tensor, rows: Tensor | None) -> Rounded:
        """Round a matrix; if ``rows`` is None (no recorded inputs), all inputs count equally."""
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
    """The rounding that a recipe names.

    Raises:
        CheckpointFormatError: the method is unknown, or makes another format.
    """
    nearest = rounder_of(recipe)
    if recipe.method == "nearest":
        return Rounding(form, nearest, None, recipe)
    if recipe.method not in METHODS:
        raise CheckpointFormatError(f"method is '{recipe.method}'; it can be nearest, {', '.join(METHODS)}")
    made, method = METHODS[recipe.method]
    if made != form.name:
        raise CheckpointFormatError(f"{recipe.method} makes {made}, not {form.name}")
    return Rounding(form, nearest, method, recipe)


@dataclass(frozen=True, slots=True)
class TorchPlan:
    """The plan for a file's tensors: dtypes and shapes ``before`` and ``after``, and for each tensor to round
    the names of its linears.

    A tensor is one linear, or a stack of one for each step of the depformer.
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
    """Plan the recipe for a published language model, from the file's header only.

    ``sets`` is the number of sets of depformer weights in the file.

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

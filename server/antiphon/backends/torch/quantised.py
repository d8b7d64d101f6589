"""Linear layers with quantised weights: INT8, INT4 and FP8, distinguished by dtype.

**Files**: a weight ``X`` has its scales in ``X_scale`` ``[out, 1]`` or, in blocks, ``[out, blocks]``; if its
input is scaled first, ``X_prescale`` ``[sets, in]``; if the input is rounded to a fixed step, ``X_step``
``[sets, 1]``. ``sets`` is 1, except for a tensor that stacks the weights of several steps of the depformer.

**FP8**: weights as float8_e4m3 with a scale for each output channel, only in files. When a model is loaded,
they become weights of the compute dtype, so the only gain is a smaller file. On GPUs that multiply FP8, such
products are not faster than INT8 products, and less exact.

**INT4**: two weights a byte and one scale for each block of a row; inputs stay in float. On a CPU torch's
INT4 product computes in bfloat16. Rounding inputs and results to bfloat16 changes each by 0.2 %; INT4 changes
the weights by 9 % (docs/adr/0019-quantisation-recipes.md). If the CPU or the shape does not support this
product, every call expands the weight; a GPU rejects the format (:func:`check_forms`).

**INT4 with rounded inputs** (W4A8): rows are rounded as for INT8, and each block is a product of integers,
exact in int32. Products are scaled in float32, and added from the first block to the last. A GPU's kernel
reads the weights in pairs of blocks (:meth:`Int4Linear.pair`); torch's product for CPUs accepts rounded rows
like any others (docs/adr/0038-four-bit-weights.md).

**INT8**: weights with a scale per output channel, inputs rounded per row. A scale per row keeps rows
independent: a loud row does not change the rounding of others. The product is computed in integers, int8 x
int8 to int32, and scaled back in float32: by ``torch._int_mm``, or by oneDNN with a weight converted once to
its layout (docs/adr/0007-int8-on-integer-products.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.kv_forms import pack_halves, quantize_tokens
from antiphon.backends.torch.modules.layers import PACKED_FOR_ROWS, Linear
from antiphon.errors import CheckpointFormatError, UnsupportedError


def fp8_values(weight: Tensor, scale: Tensor) -> Tensor:
    """The float32 values ``[out, in]`` of an FP8 weight and its scales ``[out]`` or ``[out, 1]``."""
    return weight.float() * scale.float().reshape(-1, 1)


class Fp8Linear(nn.Module):
    """A linear layer as FP8 files store it: ``weight`` float8_e4m3 ``[out, in]``, ``scale`` float32
    ``[out]``.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Store a quantised weight; ``dtype`` is the dtype of the expanded weight."""
        super().__init__()
        self.dtype = dtype
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale.reshape(-1).float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def expanded(self) -> Linear:
        """The same layer with a weight of the compute dtype."""
        return Linear.around(fp8_values(self.weight.data, self.scale.data).to(self.dtype), self.bias)


def expand_fp8(module: nn.Module) -> None:
    """Give every FP8 linear a weight of the compute dtype."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Fp8Linear):
                setattr(parent, name, child.expanded())


PACKED_ROWS = 16
"""The output channels of the packed layout are a multiple of this number."""

PACKED_BLOCKS = (32, 64, 128, 256)
"""Weights per scale that torch's product for CPUs accepts."""

NIBBLE_ZERO = 8
"""The stored value of the integer 0: nibbles are unsigned, the integers are -8 to 7."""


def pack_nibbles(integers: Tensor) -> Tensor:
    """Pack integers -8 to 7 ``[out, in]`` into uint8 ``[out, in / 2]``, the first of each pair in the low
    bits.
    """
    nibbles = (integers + NIBBLE_ZERO).to(torch.uint8)
    return nibbles[:, ::2] | nibbles[:, 1::2] << 4


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Unpack uint8 ``[out, in / 2]`` to int8 ``[out, in]``: the reverse of :func:`pack_nibbles`."""
    pairs = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
    return pairs.to(torch.int8) - NIBBLE_ZERO


def int4_values(packed: Tensor, scale: Tensor) -> Tensor:
    """The float32 values ``[out, in]`` of a packed INT4 weight and its scales ``[out, blocks]``.

    Raises:
        CheckpointFormatError: the row is not a multiple of the blocks.
    """
    integers = unpack_nibbles(packed)
    (rows, width), blocks = integers.shape, scale.shape[-1]
    if width % blocks or scale.shape[0] != rows:
        raise CheckpointFormatError(
            f"scales {tuple(scale.shape)} do not fit an INT4 weight [{rows}, {width}]"
        )
    return (integers.view(rows, blocks, -1).float() * scale.float()[..., None]).view(rows, width)


PAIRED_BLOCKS = (32, 64)
"""Weights per scale that a GPU's kernel multiplies."""


class Int4Linear(nn.Module):
    """A linear layer in INT4: ``weight`` uint8 ``[out, in / 2]``, ``scale`` float32 ``[out, blocks]``;
    outputs have the dtype of the inputs.

    ``prescale`` float32 ``[in]``, if given, multiplies the input first (AWQ). With ``rounds_input``
    inputs are rounded to INT8, each row to its own scale.
    """

    bias: Tensor | None
    prescale: Tensor | None

    def __init__(
        self, weight: Tensor, scale: Tensor, bias: Tensor | None = None, prescale: Tensor | None = None
    ) -> None:
        """Store a quantised weight."""
        super().__init__()
        self.out_features, self.in_features = weight.shape[0], 2 * weight.shape[1]
        self.block = self.in_features // scale.shape[1]
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale.float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.prescale = None if prescale is None else nn.Parameter(prescale.float(), requires_grad=False)
        self.rounds_input = False
        self.packed: Tensor | None = None
        self._paired_product: Callable[[Int4Linear, Tensor], Tensor] | None = None

    @property
    def is_paired(self) -> bool:
        """Whether :meth:`pair` has arranged the weight for a GPU's kernel."""
        return self._paired_product is not None

    def pack(self) -> None:
        """Convert the weight for torch's INT4 product, if the CPU and the shape support it."""
        shaped = self.out_features % PACKED_ROWS == 0 and self.block in PACKED_BLOCKS
        if self.weight.device.type != "cpu" or self.packed is not None or not shaped:
            return
        nibbles = unpack_nibbles(self.weight.data).to(torch.int32) + NIBBLE_ZERO
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles, 1)
        scale = self.scale.t().bfloat16()
        self.scale = nn.Parameter(torch.stack([scale, torch.zeros_like(scale)], -1), requires_grad=False)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def pair(self, product: Callable[[Int4Linear, Tensor], Tensor]) -> None:
        """Arrange the weight for a kernel's ``product``, if its shape allows it and inputs are not scaled
        first.

        A byte of ``weight`` int8 ``[pairs, out, block]`` then has one number of each of two neighbouring
        blocks, the first block's in the low bits. An element of ``scale`` int32 ``[pairs, out]`` has both
        scales in float16.
        """
        shaped = self.block in PAIRED_BLOCKS and self.in_features % (2 * self.block) == 0
        if not shaped or self.prescale is not None:
            return
        numbers = unpack_nibbles(self.weight.data).view(self.out_features, -1, 2 * self.block)
        weight = pack_halves(numbers).transpose(0, 1).contiguous()
        scale = self.scale.data.half().view(torch.int32).t().contiguous()
        self.weight, self.scale = (nn.Parameter(part, requires_grad=False) for part in (weight, scale))
        self._paired_product = product

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        flat = x.reshape(-1, self.in_features)
        if self._paired_product is not None:
            out = self._paired_product(self, flat)
            return out.view(*x.shape[:-1], self.out_features)
        if self.prescale is not None:
            flat = flat * self.prescale
        if self.rounds_input:
            rows, row_scale = quantize_tokens(flat)
            out = self._rounded_product(rows) * row_scale[:, None]
        else:
            out = self._product(flat, x.dtype)
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Map ``[n, in]`` to ``[n, out]`` in ``dtype``, by torch's int4 kernel if the weight is packed."""
        if self.packed is not None:
            product = torch.ops.aten._weight_int4pack_mm_for_cpu
            out: Tensor = product(rows.bfloat16(), self.packed, self.block, self.scale)
            return out.to(dtype)
        return functional.linear(rows.to(dtype), int4_values(self.weight, self.scale).to(dtype))

    def _rounded_product(self, rows: Tensor) -> Tensor:
        """Map int8 ``[n, in]`` to float32 ``[n, out]``: integer products, scaled by block."""
        if self.packed is not None:
            return self._product(rows, torch.float32)
        numbers = unpack_nibbles(self.weight).float().split(self.block, dim=1)
        total = rows.new_zeros(rows.shape[0], self.out_features, dtype=torch.float32)
        for part, weight, scale in zip(
            rows.float().split(self.block, dim=1), numbers, self.scale.t(), strict=True
        ):
            total += (part @ weight.t()) * scale  # whole numbers below 2^24: exact
        return total


CUDA_ROWS = 32
"""Rows of ``torch._int_mm`` on CUDA are a multiple of this: it needs more than 16 rows, in multiples of 8."""

RECIPE = ("transformer.layers.", "depformer.layers.")
"""The linears that become INT8: the layers' projections. The others stay in full precision: embeddings, the
depformer's inputs, and every head (text, codebooks, pauses). They are small and near the output, where an
error is audible.
"""


def has_integer_units() -> bool:
    """Whether this CPU multiplies int8 into int32 exactly (VNNI); older CPUs saturate."""
    return bool(torch._C._has_mkldnn and torch.cpu._is_vnni_supported())


class Int8Linear(nn.Module):
    """A linear layer in INT8: ``weight`` int8 ``[out, in]``, ``scale`` float32 ``[out]``; inputs and outputs
    keep their dtype.

    Without ``rounds_input`` only the weight is INT8: no rounding of inputs, no integer product, and no gain
    in speed, since every call converts the weight to the input's dtype. ``prescale`` float32 ``[in]``, if
    given, multiplies the input first (SmoothQuant); ``step`` float32 ``[1]`` is the unit of the rounded
    input, instead of a scale for each row.
    """

    bias: Tensor | None
    prescale: Tensor | None
    step: Tensor | None

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None = None,
        prescale: Tensor | None = None,
        step: Tensor | None = None,
    ) -> None:
        """Store a quantised weight."""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale.reshape(-1).float(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.prescale = None if prescale is None else nn.Parameter(prescale.float(), requires_grad=False)
        self.step = None if step is None else nn.Parameter(step.reshape(1).float(), requires_grad=False)
        self.rounds_input = True
        self.packed: Tensor | None = None
        self._zeros = torch.zeros(0, dtype=torch.int64)

    @classmethod
    def quantize(cls, linear: Linear) -> Int8Linear:
        """Make an INT8 layer from a linear: each row of the weight is rounded symmetrically to its own
        scale.
        """
        return cls(*quantize_tokens(linear.weight), linear.bias)

    @property
    def is_plain(self) -> bool:
        """Whether inputs are rounded directly, each row to its own scale, as the GPU kernels need it."""
        return self.rounds_input and self.prescale is None and self.step is None

    def pack(self) -> None:
        """Convert the weight for oneDNN's integer product. CPUs with VNNI only, irreversible."""
        if self.weight.device.type != "cpu" or self.packed is not None or not has_integer_units():
            return
        self.packed = torch.ops.onednn.qlinear_prepack(self.weight.data, [PACKED_FOR_ROWS, self.in_features])
        self._zeros = torch.zeros(self.out_features, dtype=torch.int64)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        flat = x.reshape(-1, self.in_features)
        if self.prescale is not None:
            flat = flat * self.prescale
        if self.rounds_input:
            if self.step is None:
                rows, row_scale = quantize_tokens(flat)
            else:  # values above 127 steps are clipped
                rows = torch.round(flat.float() / self.step).clamp(-127, 127).to(torch.int8)
                row_scale = self.step
            out = self._product(rows) * row_scale[:, None]
        else:
            out = functional.linear(flat.to(x.dtype), self.weight.to(x.dtype)).float() * self.scale
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """Map int8 ``[n, in]`` to float32 ``[n, out]``, the weight's scales applied."""
        if self.packed is not None:
            shifted = rows.view(torch.uint8) ^ 128  # oneDNN requires unsigned rows around a zero point
            out: Tensor = torch.ops.onednn.qlinear_pointwise(
                shifted, 1.0, 128, self.packed, self.scale, self._zeros,
                None, 1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
            return out
        count = rows.shape[0]
        if rows.device.type != "cpu":
            rows = functional.pad(rows, (0, 0, 0, -count % CUDA_ROWS))
        return torch._int_mm(rows, self.weight.t())[:count].float() * self.scale


def follows_recipe(name: str) -> bool:
    """Whether the recipe makes the linear of this name INT8."""
    return name.startswith(RECIPE)


def quantize_linears(
    module: nn.Module,
    chosen: Callable[[str], bool] = follows_recipe,
    device: torch.device | None = None,
) -> int:
    """Replace the linears with chosen names by INT8 linears; return their number.

    With ``device`` each linear is moved there before it is rounded, so that the device never holds more than
    one unrounded linear.
    """
    names = [name for name, child in module.named_modules() if isinstance(child, Linear) and chosen(name)]
    for name in names:
        parent_name, _, own_name = name.rpartition(".")
        linear = module.get_submodule(name)
        assert isinstance(linear, Linear)
        linear = linear if device is None else linear.to(device)
        setattr(module.get_submodule(parent_name), own_name, Int8Linear.quantize(linear))
    return len(names)


def int8_linears(module: nn.Module) -> list[Int8Linear]:
    """Every INT8 linear of a module."""
    return [child for child in module.modules() if isinstance(child, Int8Linear)]


def int4_linears(module: nn.Module) -> list[Int4Linear]:
    """Every INT4 linear of a module."""
    return [child for child in module.modules() if isinstance(child, Int4Linear)]


Parts = dict[str, Tensor]

LAYERS: Mapping[torch.dtype, Callable[[Linear, Parts], nn.Module]] = {
    torch.int8: lambda linear, parts: Int8Linear(
        parts["weight"], parts["scale"], linear.bias, parts.get("prescale"), parts.get("step")
    ),
    torch.uint8: lambda linear, parts: Int4Linear(
        parts["weight"], parts["scale"], linear.bias, parts.get("prescale")
    ),
    torch.float8_e4m3fn: lambda linear, parts: Fp8Linear(
        parts["weight"], parts["scale"], linear.bias, linear.weight.dtype
    ),
}
"""For each dtype of a weight, the function that makes a layer from its parts instead of a linear."""

VALUES: Mapping[torch.dtype, Callable[[Tensor, Tensor], Tensor]] = {
    torch.int8: lambda weight, scale: weight.float() * scale.reshape(-1, 1),
    torch.uint8: int4_values,
    torch.float8_e4m3fn: fp8_values,
}
"""For each dtype of a weight, the function that returns its float32 values ``[out, in]``, given its scales.
"""

NAMES: Mapping[torch.dtype, str] = {torch.int8: "INT8", torch.uint8: "INT4", torch.float8_e4m3fn: "FP8"}
"""For each dtype of a weight, its name in messages."""

FORMATS: Mapping[type[nn.Module], str] = {Int8Linear: "int8", Int4Linear: "int4"}
"""The names of the weights of each kind of layer."""

BESIDE = ("scale", "prescale", "step")
"""The parts that may accompany a weight, by the ending of their names."""


def expect_stored(module: nn.Module, name: str, parts: Parts) -> None:
    """Replace the linear ``name`` by an empty layer for ``parts`` (``weight``, ``scale``, ...).

    Raises:
        CheckpointFormatError: the linear does not exist.
    """
    parent_name, _, own_name = name.rpartition(".")
    try:
        linear = module.get_submodule(name)
    except AttributeError:
        linear = module
    if not isinstance(linear, Linear):
        kind = NAMES[parts["weight"].dtype]
        raise CheckpointFormatError(f"the file has '{name}' as {kind}, but only linear layers can be")
    empty = {part: torch.empty_like(tensor, device="meta") for part, tensor in parts.items()}
    setattr(module.get_submodule(parent_name), own_name, LAYERS[parts["weight"].dtype](linear, empty))


def formats_of(module: nn.Module) -> list[str]:
    """The quantised formats among the weights of a module's linears, such as "int8" and "int4"."""
    kinds = {type(child) for child in module.modules()}
    return [name for kind, name in FORMATS.items() if kind in kinds]


def weight_bits(module: nn.Module) -> int:
    """The smallest number of bits of the layers' weights: 4 or 8, or 16 if no weights are quantised."""
    found = formats_of(module)
    return 4 if "int4" in found else 8 if "int8" in found else 16


GPU_RECIPE = "int8"
"""The recipe of ``antiphon quantize`` that a GPU runs."""


def slow_form(layer: nn.Module) -> str | None:
    """The reason why no kernel supports the format of a linear; None if a kernel supports it or it is not
    quantised.
    """
    if isinstance(layer, Int4Linear):
        inputs = "rounded inputs without a kernel" if layer.rounds_input else "inputs as they are"
        return None if layer.is_paired else f"INT4 weights with {inputs}"
    if not isinstance(layer, Int8Linear):
        return None
    if not layer.rounds_input:
        return "INT8 weights with inputs as they are (activations=compute)"
    if layer.step is not None:
        return "INT8 weights with a fixed step for inputs (int8-static)"
    return None if layer.prescale is None else "INT8 weights with scaled inputs (int8-smooth)"


def check_forms(name: str, model: nn.Module) -> None:
    """Check that a GPU's kernels support each linear of a model in its format.

    Raises:
        UnsupportedError: a linear is not supported; the message names a recipe that is supported.
    """
    slow = [form for layer in model.modules() if (form := slow_form(layer)) is not None]
    if not slow:
        return
    raise UnsupportedError(
        f"{name} has {slow[0]} in {len(slow)} linears; a GPU multiplies INT8 whose inputs are rounded row by "
        f"row, and bfloat16: quantise the model with --recipe {GPU_RECIPE}, or serve it on a CPU"
    )

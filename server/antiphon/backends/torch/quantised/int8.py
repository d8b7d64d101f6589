"""INT8 linears: weights with a scale per output channel, inputs rounded per row as they come.

A scale per row keeps rows apart: a loud row does not change the rounding of others. The product is that of
integers, int8 x int8 to int32, and is scaled back in float32: on ``torch._int_mm``, or on oneDNN with the
weight laid out for it once (docs/adr/0007-int8-on-integer-products.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.torch.modules.kv import quantize_tokens
from antiphon.backends.torch.modules.linear import PACKED_FOR_ROWS, Linear
from antiphon.errors import CheckpointFormatError

CUDA_ROWS = 32
"""Rows of ``torch._int_mm`` on CUDA are a multiple: it refuses 16 and less, and 8 has to divide them."""

RECIPE = ("transformer.layers.", "depformer.layers.")
"""What becomes INT8: the layers' projections. Everything else is small and near the output, where an
error is heard: embeddings, the depformer's inputs, and every head (text, codebooks, pauses)."""


def has_integer_units() -> bool:
    """Whether this CPU multiplies int8 into int32 exactly (VNNI); older ones saturate on the way."""
    return bool(torch._C._has_mkldnn and torch.cpu._is_vnni_supported())


class Int8Linear(nn.Module):
    """``weight`` int8 ``[out, in]``, ``scale`` float32 ``[out]``; inputs and outputs keep their dtype.

    With ``rounds_input`` false only the weight is INT8: no rounding of inputs, no integer product, and
    no gain in speed, since every call turns the weight into the input's dtype. ``prescale`` float32
    ``[in]``, where there is one, multiplies the input first (SmoothQuant); ``step`` float32 ``[1]`` is what
    a whole number of the rounded input stands for, instead of a scale for each row.
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
        """Take over a quantised weight."""
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
    def like(cls, linear: Linear, parts: dict[str, Tensor]) -> Int8Linear:
        """An empty layer in a linear's place, on the meta device, for tensors that come from a file."""
        empty = {name: torch.empty_like(part, device="meta") for name, part in parts.items()}
        return cls(empty["weight"], empty["scale"], linear.bias, empty.get("prescale"), empty.get("step"))

    @classmethod
    def quantize(cls, linear: Linear) -> Int8Linear:
        """Round a linear's weight, symmetrically, to its rows' largest values."""
        return cls(*quantize_tokens(linear.weight), linear.bias)

    @classmethod
    def from_torchao(cls, weight: Tensor, bias: Tensor | None = None) -> Int8Linear:
        """Take over torchao's ``Int8Tensor``: ``qdata`` int8 ``[out, in]``, ``scale [out, 1]``.

        Raises:
            CheckpointFormatError: another tensor, or scales that are not one per output channel.
        """
        qdata, scale = getattr(weight, "qdata", None), getattr(weight, "scale", None)
        if not isinstance(qdata, Tensor) or not isinstance(scale, Tensor) or qdata.dtype != torch.int8:
            raise CheckpointFormatError(f"expected an Int8Tensor of torchao, not {type(weight).__name__}")
        if scale.numel() != qdata.shape[0]:
            raise CheckpointFormatError(
                f"{scale.numel()} scales for {qdata.shape[0]} output channels; only one for each can be run"
            )
        return cls(qdata, scale, bias)

    @property
    def is_plain(self) -> bool:
        """Whether inputs are rounded as they are, each row to its own scale: what the GPU's kernels do."""
        return self.rounds_input and self.prescale is None and self.step is None

    def pack(self) -> None:
        """Lay the weight out for oneDNN's integer product. CPUs with VNNI only, irreversible."""
        if self.weight.device.type != "cpu" or self.packed is not None or not has_integer_units():
            return
        self.packed = torch.ops.onednn.qlinear_prepack(self.weight.data, [PACKED_FOR_ROWS, self.in_features])
        self._zeros = torch.zeros(self.out_features, dtype=torch.int64)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        flat = x.reshape(-1, self.in_features)
        if self.prescale is not None:
            flat = flat * self.prescale
        if self.rounds_input:
            rows, row_scale = (
                quantize_tokens(flat) if self.step is None else (_in_steps(flat, self.step), self.step)
            )
            out = self._product(rows) * row_scale[:, None]
        else:
            out = functional.linear(flat.to(x.dtype), self.weight.to(x.dtype)).float() * self.scale
        if self.bias is not None:
            out = out + self.bias
        return out.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        """Int8 ``[n, in]`` to float32 ``[n, out]``, the weight's scales applied."""
        if self.packed is not None:
            shifted = rows.view(torch.uint8) ^ 128  # oneDNN wants unsigned rows around a zero point
            out: Tensor = torch.ops.onednn.qlinear_pointwise(
                shifted, 1.0, 128, self.packed, self.scale, self._zeros,
                None, 1.0, 0, torch.float32, "none", [], "",
            )  # fmt: skip
            return out
        count = rows.shape[0]
        if rows.device.type != "cpu":
            rows = functional.pad(rows, (0, 0, 0, -count % CUDA_ROWS))
        return torch._int_mm(rows, self.weight.t())[:count].float() * self.scale


def _in_steps(values: Tensor, step: Tensor) -> Tensor:
    """Values as int8 multiples of a fixed step; what is louder than 127 of them is clipped."""
    return torch.round(values.float() / step).clamp(-127, 127).to(torch.int8)


def follows_recipe(name: str) -> bool:
    """Whether the recipe makes the linear of this name INT8."""
    return name.startswith(RECIPE)


def quantize_linears(module: nn.Module, chosen: Callable[[str], bool] = follows_recipe) -> int:
    """Replace the linears whose names are chosen by INT8 ones. Returns how many there were."""
    names = [name for name, child in module.named_modules() if isinstance(child, Linear) and chosen(name)]
    for name in names:
        parent_name, _, own_name = name.rpartition(".")
        linear = module.get_submodule(name)
        assert isinstance(linear, Linear)
        setattr(module.get_submodule(parent_name), own_name, Int8Linear.quantize(linear))
    return len(names)


def int8_linears(module: nn.Module) -> list[Int8Linear]:
    """Every INT8 linear of a module."""
    return [child for child in module.modules() if isinstance(child, Int8Linear)]

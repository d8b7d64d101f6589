"""The linear layer, and the forms its weight can take."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

PACKED_FOR_ROWS = 16
"""Rows of input the packed layout is chosen for. Measured at 1 to 16 rows: this layout is the best or
within 2 % of it, while the one chosen for a single row takes up to 1.8 times as long."""


class Linear(nn.Module):
    """``y = x W^T (+ b)`` with ``weight [out, in]``.

    On CPU :meth:`pack` lays the weight out for oneDNN once: with a handful of rows a linear only reads
    its weight, and the packed layout is read more than twice as fast as the plain one.
    """

    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), requires_grad=False)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False)
        else:
            self.bias = None
        self.packed: Tensor | None = None

    @classmethod
    def around(cls, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A linear of weights that are there already."""
        with torch.device("meta"):
            linear = cls(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = bias
        return linear

    def pack(self) -> None:
        """Replace the weight by oneDNN's layout. CPU only, irreversible; as it is where oneDNN has none."""
        if self.weight.device.type != "cpu" or self.packed is not None or not can_pack(self.weight.dtype):
            return
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.data, PACKED_FOR_ROWS)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        if self.packed is None:
            return functional.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a layout for weights of this type on this CPU: without AVX-512 none of 16 bits."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in supported or bool(supported[dtype]())


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all weights of a module, packed ones included."""
    plain: int = sum(tensor.nbytes for tensor in module.state_dict().values())
    packed = [getattr(child, "packed", None) for child in module.modules()]
    return plain + sum(tensor.numel() * tensor.itemsize for tensor in packed if isinstance(tensor, Tensor))


def pack_linears(module: nn.Module) -> None:
    """Pack every linear of a module that lives on a CPU. See :meth:`Linear.pack`."""
    for child in module.modules():
        if isinstance(child, Linear):
            child.pack()

"""Our own translations of operators into ONNX, where the exporter's are slow or inexact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnxscript
import torch

from antiphon_quantize import onnx_convolutions, onnx_rings  # noqa: F401  (their operators are below)

op: Any = onnxscript.opset20  # its annotations do not know that Python's numbers become constants

FLOAT, UINT8 = 1, 2
"""ONNX's numbers of the types."""

OPSET = 20
"""The lowest opset with everything the graphs need (Gelu)."""


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> Any:
    """Attention of ``[n, H, T, D]`` to ``[n, G, K, D]``; the G heads of keys serve H / G queries each.

    Keys and values are read where they are, and every query is a product of its own: for one row the runtime
    has a routine that lays nothing out anew. It would leave it for a product into which it has folded the
    scale; the Reshape between them prevents that (decision 0010).
    """
    if dropout_p or is_causal:
        raise ValueError("attention with dropout or a causal flag does not occur in these models")
    _, heads, positions, width = query.shape
    groups = key.shape[1]
    alone = heads // groups * positions
    query = op.Mul(query, op.CastLike(1 / math.sqrt(width) if scale is None else scale, query))
    query = op.Reshape(query, [0, groups, alone, 1, width])
    keys = op.Transpose(op.Unsqueeze(key, [2]), perm=[0, 1, 2, 4, 3])
    scores = op.Reshape(op.MatMul(query, keys), [0, heads, positions, -1])
    if attn_mask is not None:
        scores = op.Add(scores, op.Where(attn_mask, 0.0, -math.inf))
    weights = op.Reshape(op.Softmax(scores, axis=-1), [0, groups, alone, 1, -1])
    return op.Reshape(op.MatMul(weights, op.Unsqueeze(value, [2])), [0, heads, positions, width])


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """ELU as four operators, each of which takes an eighth of the runtime's own; the same within 1e-7."""
    if (alpha, scale, input_scale) != (1.0, 1.0, 1.0):
        raise ValueError(f"ELU with {alpha}, {scale} and {input_scale} does not occur in these models")
    return op.Max(x, op.Sub(op.Exp(op.Min(x, 0.0)), 1.0))


def divide(x: Any, divisor: Any, rounding_mode: str | None = None) -> Any:
    """Floor division of integers as such: the exporter's own goes through float32, which ends at 2^24."""
    if rounding_mode != "floor":
        raise ValueError(f"division with rounding mode {rounding_mode} does not occur in these models")
    divisor = op.CastLike(divisor, x)
    return op.Div(op.Sub(x, op.Mod(x, divisor)), divisor)


def multiply_bytes(left: Any, right: Any) -> Any:
    """Bytes times signed bytes; without zero points the runtime reads the right side where it lies."""
    return op.MatMulInteger(left, right)


def nearest_bytes(values: Any) -> Any:
    """Rounding and narrowing in one pass."""
    return op.QuantizeLinear(values, 1.0, op.Cast(0, to=UINT8))


def round_by_row(values: Any, scale: Any, middle: int) -> Any:
    """Bytes around a middle, a scale for each row."""
    if not middle:
        return op.QuantizeLinear(values, scale, axis=0)
    zeros = op.Expand(op.Cast(middle, to=UINT8), op.Shape(scale))
    return op.QuantizeLinear(values, scale, zeros, axis=0)


def multiply_rounded(values: Any, weight: Any, scale: Any, middle: int) -> Any:
    """A product of integers, scaled by column; a rule of ``onnx_fusions`` makes it one node."""
    found = op.MatMulInteger(values, weight, *([op.Cast(middle, to=UINT8)] if middle else []))
    return op.Mul(op.Cast(found, to=FLOAT), scale)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention,
    torch.ops.aten.elu.default: elu,
    torch.ops.aten.div.Tensor_mode: divide,
    torch.ops.antiphon.multiply_bytes.default: multiply_bytes,
    torch.ops.antiphon.nearest_bytes.default: nearest_bytes,
    torch.ops.antiphon.round_by_row.default: round_by_row,
    torch.ops.antiphon.multiply_rounded.default: multiply_rounded,
}
"""For ``torch.onnx.export(custom_translation_table=...)``."""

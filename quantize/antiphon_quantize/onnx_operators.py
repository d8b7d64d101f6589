"""Our own translations of operators into ONNX, where the exporter's cost a copy of a key-value ring."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnxscript
import torch

op: Any = onnxscript.opset20  # its annotations do not know that Python's numbers become constants

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

    Keys and values are read where they are: the runtime folds the transposition into the product.
    """
    if dropout_p or is_causal:
        raise ValueError("attention with dropout or a causal flag does not occur in these models")
    _, heads, positions, width = query.shape
    groups = key.shape[1]
    query = op.Mul(query, op.CastLike(1 / math.sqrt(width) if scale is None else scale, query))
    if heads != groups:  # queries that share keys become further positions
        query = op.Reshape(query, [0, groups, heads // groups * positions, width])
    scores = op.MatMul(query, op.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None:
        bias = op.Where(attn_mask, 0.0, -math.inf)
        scores = _add_bias(scores, bias, heads, groups, positions)
    out = op.MatMul(op.Softmax(scores, axis=-1), value)
    return out if heads == groups else op.Reshape(out, [0, heads, positions, width])


def _add_bias(scores: Any, bias: Any, heads: int, groups: int, positions: int) -> Any:
    if heads == groups or positions == 1:
        return op.Add(scores, bias)
    spread = op.Reshape(scores, [0, heads, positions, -1])
    return op.Reshape(op.Add(spread, bias), op.Shape(scores))


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention,
}
"""For ``torch.onnx.export(custom_translation_table=...)``."""

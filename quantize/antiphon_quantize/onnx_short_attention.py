"""Attention of a frame's few tokens to each other, a depth transformer's, as ONNX Runtime's own node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import GraphProto, NodeProto, helper

from antiphon_quantize.onnx_view import DOMAIN, GraphView

WIDTHS: Final = 8
"""The runtime's node takes heads of a multiple of this number of numbers."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One token's attention to itself and those before it, all in one layer of one frame.

    ``projected`` ``[n, 1, (H + 2 G) * D]``: queries, keys and values side by side. ``key`` and ``past_key``
    name the keys up to this token and up to the one before (None for the first).
    """

    projected: str
    key: str
    past_key: str | None
    heads: int
    groups: int


def fuse_short_attention(graph: GraphProto) -> None:
    """Every attention without a mask whose keys are this frame's own: GroupQueryAttention for each.

    The node keeps keys and values internally, in one tensor for each layer and token.
    """
    view = GraphView(graph)
    kept: dict[str, tuple[str, str, int]] = {}
    counts: dict[int, str] = {}
    for node in list(graph.node):
        found = _attention(view, node)
        if found is None or (found.past_key is not None and found.past_key not in kept):
            continue
        past = ("", "", 0) if found.past_key is None else kept[found.past_key]
        made = (f"{found.key}.keys", f"{found.key}.values", past[2] + 1)
        extra: list[NodeProto] = []
        if past[2] not in counts:
            counts[past[2]] = f"fused.past.{past[2]}"
            extra = _count(graph, view, past[2], counts[past[2]])
        kept[found.key] = made
        total = view.constant(made[2], dtype=np.int32)
        inputs = [found.projected, "", "", past[0], past[1], counts[past[2]], total]
        look = helper.make_node(
            "GroupQueryAttention",
            inputs,
            [node.output[0], made[0], made[1]],
            domain=DOMAIN,
            num_heads=found.heads,
            kv_num_heads=found.groups,
        )
        view.replace(node, [*extra, look])
    view.write()


def _count(graph: GraphProto, view: GraphView, past: int, name: str) -> list[NodeProto]:
    """The number of tokens before, once for every row."""
    shape = f"{name}.shape"
    given = graph.input[0].name
    return [
        helper.make_node("Shape", [given], [shape], start=0, end=1),
        helper.make_node("Expand", [view.constant([past], dtype=np.int32), shape], [name]),
    ]


def _attention(view: GraphView, node: NodeProto) -> Attention | None:
    """The attention whose output, ``[n, 1, H * D]``, this node makes; None where it makes anything else."""
    if node.op_type != "Reshape" or len(view.shape(node.output[0]) or ()) != 3:
        return None
    product = view.chain(node.input[0], "Reshape", "Reshape", "MatMul") or view.chain(
        node.input[0], "Reshape", "MatMul"
    )
    if product is None:
        return None
    softmax = view.chain(product.input[0], "Reshape", "Softmax")
    if softmax is None:
        return None
    scores = view.chain(softmax.input[0], "Reshape", "MatMul")
    if scores is None:
        return None
    turned = scores.input[1]
    keys = view.chain(turned, "Transpose", "Unsqueeze") or view.chain(turned, "Reshape", "Unsqueeze")
    values = view.chain(product.input[1], "Unsqueeze")
    query = view.chain(scores.input[0], "Reshape", "Mul", "Reshape")
    if keys is None or values is None or query is None:
        return None
    split = view.chain(query.input[0], "Reshape", "Split") or view.maker(query.input[0], "Split")
    key, shape = keys.input[0], view.shape(query.output[0])
    groups = (view.shape(key) or (None, None))[1]
    if split is None or shape is None or shape[1] is None or groups is None or (shape[-1] or 1) % WIDTHS:
        return None
    joined = view.maker(key, "Concat")
    return Attention(split.input[0], key, None if joined is None else joined.input[0], shape[1], groups)

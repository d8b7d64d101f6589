"""Pieces of a graph that the exporter writes as many small nodes, made one node each.

At the sizes of a built-in model a node costs about as much for being run as for what it computes. What these
rules match is what the modules of the torch backend become; anything else stays as it is. ONNX Runtime has
the operators that are put in place since 1.20 (``com.microsoft`` is its own domain). Results are the same to
rounding, and nothing is shared between rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper

from antiphon_quantize.onnx_rotation import fuse_rotations
from antiphon_quantize.onnx_short_attention import fuse_short_attention
from antiphon_quantize.onnx_view import DOMAIN, GraphView

DROPPED_EPSILON: Final = 1e-8
"""What a norm adds before its root where the exporter left the sum out, taking so little for nothing."""

Rule: TypeAlias = Callable[[GraphView, NodeProto], list[NodeProto] | None]
"""From the last node of a piece to the nodes in its place, which make its outputs; None where none begins."""


def fuse_file(path: Path) -> None:
    """Rewrite the graph in ``path``; its data file, where it has one, stays as it is."""
    model = onnx.load(path, load_external_data=False)
    fuse_graph(model)
    path.write_bytes(model.SerializeToString())


def fuse_graph(model: onnx.ModelProto) -> None:
    """Apply every rule to a graph in place."""
    graph = model.graph
    for rule in (_one_view, _squeeze, _scatter, _norm, _scaled_product):
        _apply(graph, rule)
    fuse_rotations(graph)
    fuse_short_attention(graph)
    _apply(graph, _sum_and_norm)
    known = {entry.domain for entry in model.opset_import}
    if DOMAIN not in known and any(node.domain == DOMAIN for node in graph.node):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _apply(graph: GraphProto, rule: Rule) -> None:
    view = GraphView(graph)
    for node in list(graph.node):
        found = rule(view, node)
        if found is not None:
            view.replace(node, found)
    view.write()


def _one_view(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """A transposition that moves no number, since an axis it moves has one place: a Reshape."""
    if node.op_type != "Transpose":
        return None
    shape, order = view.shape(node.input[0]), view.attribute(node, "perm")
    if shape is None:
        return None
    moved = [axis for axis in order if shape[axis] != 1]
    if moved != sorted(moved) or sum(shape[axis] is None for axis in order) > 1:
        return None
    target = [-1 if shape[axis] is None else shape[axis] for axis in order]
    return [helper.make_node("Reshape", [node.input[0], view.constant(target)], node.output)]


def _squeeze(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """The choice of the only place of an axis, which copies: a Squeeze, which does not."""
    if node.op_type != "Gather" or view.value(node.input[1]) is None:
        return None
    shape, axis = view.shape(node.input[0]), int(view.attribute(node, "axis", 0))
    index = view.value(node.input[1])
    if shape is None or index is None or index.ndim or shape[axis] != 1:
        return None
    return [helper.make_node("Squeeze", [node.input[0], view.constant([axis])], node.output)]


def _scatter(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """A ring's write: the numbers are as many as the places, and the places are those that were read."""
    if node.op_type != "ScatterND":
        return None
    ring, places, values = node.input
    expand = view.maker(values, "Expand")
    chosen = view.maker(expand.input[0] if expand is not None else values, "Where")
    if chosen is None:
        return None
    before = view.maker(chosen.input[2], "GatherND")
    if before is None or before.input[0] != ring or places == before.input[1]:
        return None
    return [helper.make_node("ScatterND", [ring, before.input[1], chosen.output[0]], node.output)]


def _norm(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """``x * (alpha / sqrt(mean(x^2) + epsilon))``, RMSNorm, as the one node that the runtime has for it."""
    if node.op_type != "Mul":
        return None
    for x, scale in (tuple(node.input), tuple(reversed(node.input))):
        product = view.maker(scale, "Mul")
        if product is None:
            continue
        for alpha, inverse in (tuple(product.input), tuple(reversed(product.input))):
            epsilon = _root_of_mean_square(view, x, inverse)
            if epsilon is not None and view.flatten(alpha):
                return [
                    helper.make_node(
                        "SimplifiedLayerNormalization",
                        [x, alpha],
                        node.output,
                        axis=-1,
                        epsilon=epsilon,
                        stash_type=1,
                    )
                ]
    return None


def _root_of_mean_square(view: GraphView, x: str, inverse: str) -> float | None:
    """The epsilon of ``1 / sqrt(mean(x^2) + epsilon)``; None where ``inverse`` is something else."""
    root = view.chain(inverse, "Reciprocal", "Sqrt")
    if root is None:
        return None
    mean, epsilon = root.input[0], DROPPED_EPSILON
    added = view.maker(mean, "Add")
    if added is not None:
        given = view.value(added.input[1])
        if given is None:
            return None
        mean, epsilon = added.input[0], float(given)
    square = view.chain(mean, "ReduceMean", "Pow")
    return epsilon if square is not None and square.input[0] == x else None


def _sum_and_norm(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """A sum that an RMSNorm reads: one node that makes both."""
    if node.op_type != "Add":
        return None
    norms = [
        found for found in view.readers(node.output[0]) if found.op_type == "SimplifiedLayerNormalization"
    ]
    shapes = {view.shape(name) for name in (*node.input, *node.output)}
    if len(norms) != 1 or len(shapes) != 1 or len(shapes.pop() or ()) != 3:
        return None
    (norm,) = norms
    view.replace(norm, [])
    return [
        helper.make_node(
            "SkipSimplifiedLayerNormalization",
            [*node.input, norm.input[1]],
            [norm.output[0], "", "", node.output[0]],
            domain=DOMAIN,
            epsilon=view.attribute(norm, "epsilon"),
        )
    ]


def _scaled_product(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """A product of integers that is scaled by column: the node that scales the sums while it has them."""
    if node.op_type != "Mul":
        return None
    product = view.chain(node.input[0], "Cast", "MatMulInteger")
    scale = view.shape(node.input[1])
    if product is None or scale is None or len(scale) != 1:
        return None
    values, weight, *middle = product.input
    inputs = [values, weight, view.constant(1, dtype=np.float32), node.input[1], *middle]
    return [helper.make_node("MatMulIntegerToFloat", inputs, node.output, domain=DOMAIN)]

"""Replaces groups of small nodes from the exporter by one node each.

In a built-in model a node costs about as much to start as to compute. These rules match the exported modules
of the torch backend; other nodes stay unchanged. ONNX Runtime has the replacement operators since 1.20
(``com.microsoft`` is its own domain). Results are equal except for rounding, and nothing is shared between
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

DOMAIN: Final = "com.microsoft"
"""Domain of the operators that ONNX Runtime adds."""
CONSTANT_BYTES: Final = 4096
"""Size above which a tensor counts as a weight; rules do not read weights."""

Shape: TypeAlias = tuple[int | None, ...]
"""Extents by axis; None means the number of rows, or unknown."""


class GraphView:
    """A graph with an index of its tensors; :meth:`write` applies all collected replacements at once."""

    def __init__(self, graph: GraphProto) -> None:
        """Index a graph."""
        self.graph = graph
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        told = (*graph.value_info, *graph.input, *graph.output)
        self._shapes: dict[str, Shape] = {
            value.name: tuple(
                extent.dim_value if extent.HasField("dim_value") else None
                for extent in value.type.tensor_type.shape.dim
            )
            for value in told
        }
        self._replaced: dict[int, list[NodeProto]] = {}

    def maker(self, name: str, operator: str) -> NodeProto | None:
        """The node that makes a tensor, if the node has this operator, else None."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def chain(self, name: str, *operators: str) -> NodeProto | None:
        """Follow first inputs from a tensor upwards through nodes with these operators, and return the last
        node; None if a node has another operator.
        """
        node = None
        for operator in operators:
            node = self.maker(name, operator)
            if node is None:
                return None
            name = node.input[0]
        return node

    def readers(self, name: str) -> Sequence[NodeProto]:
        """The nodes that read a tensor."""
        return self._readers.get(name, [])

    def shape(self, name: str) -> Shape | None:
        """A tensor's extents, if the graph has them."""
        if name in self._weights:
            return tuple(self._weights[name].dims)
        return self._shapes.get(name)

    def value(self, name: str) -> NDArray[Any] | None:
        """The values of a constant tensor, if it is small; otherwise None."""
        tensor = self._weights.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor) if tensor.ByteSize() < CONSTANT_BYTES else None

    def attribute(self, node: NodeProto, name: str, default: Any = None) -> Any:
        """The value of a node's attribute ``name``, or ``default``."""
        for entry in node.attribute:
            if entry.name == name:
                return helper.get_attribute_value(entry)
        return default

    def constant(self, values: int | Sequence[int], *, dtype: type[np.generic] = np.int64) -> str:
        """The name of a constant, which is added if the graph has no equal constant."""
        array = np.array(values, dtype)
        name = f"fused.{array.dtype}.{'x'.join(map(str, array.ravel()))}.{array.ndim}"
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(array, name)
            self.graph.initializer.append(self._weights[name])
        return name

    def flatten(self, name: str) -> bool:
        """Reshape a weight to one axis if exactly one of its axes is longer than 1; return whether it was."""
        tensor = self._weights.get(name)
        if tensor is None or sum(extent > 1 for extent in tensor.dims) != 1:
            return False
        width = max(tensor.dims)
        del tensor.dims[:]
        tensor.dims.append(width)
        return True

    def replace(self, node: NodeProto, found: list[NodeProto]) -> None:
        """Replace a node by ``found``; :meth:`write` also removes nodes that no other node needs."""
        for new in found:
            if not new.metadata_props:
                new.metadata_props.extend(node.metadata_props)
        self._replaced[id(node)] = found

    def write(self) -> None:
        """Make the replacements, and remove nodes and constants without a reader."""
        nodes = [new for node in self.graph.node for new in self._replaced.get(id(node), [node])]
        needed = {output.name for output in self.graph.output}
        kept: list[NodeProto] = []
        for node in reversed(nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        kept = [_copy(node) for node in reversed(kept)]
        tensors = [_copy(tensor) for tensor in self.graph.initializer if tensor.name in needed]
        made = needed.union(*(node.output for node in kept))
        values = [_copy(value) for value in self.graph.value_info if value.name in made]
        for field, entries in (("node", kept), ("initializer", tensors), ("value_info", values)):
            target = getattr(self.graph, field)
            del target[:]
            target.extend(entries)


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


INTERLEAVED = 1


def fuse_rotations(graph: GraphProto) -> None:
    """Replace the nodes of each rotary embedding of interleaved pairs (``[n, H, T, D]``) by one node.

    The runtime's node looks angles up in a table by position; here the table has this pass's own angles, one
    line for each row and position, and the positions are its line numbers.
    """
    made: set[tuple[str, str]] = set()

    def rule(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
        found = _rotation(view, node)
        if found is None:
            return None
        x, cos, sin = found
        tables = [] if (cos, sin) in made else _tables(view, cos, sin)  # made where they are read first
        made.add((cos, sin))
        inputs = [x, f"{cos}.ids", f"{cos}.table", f"{sin}.table"]
        turn = helper.make_node(
            "RotaryEmbedding", inputs, node.output, domain=DOMAIN, interleaved=INTERLEAVED
        )
        return [*tables, turn]

    _apply(graph, rule)


def _tables(view: GraphView, cos: str, sin: str) -> list[NodeProto]:
    """Nodes from cosines and sines ``[n, 1, T, D / 2]`` to their tables ``[n * T, D / 2]``, and positions."""
    shape = view.shape(cos)
    assert shape is not None
    positions, half = shape[2], shape[3]
    assert positions is not None
    assert half is not None
    ids, count, lines = f"{cos}.ids", f"{cos}.count", view.constant([-1, half])
    return [
        helper.make_node("Reshape", [cos, lines], [f"{cos}.table"]),
        helper.make_node("Reshape", [sin, lines], [f"{sin}.table"]),
        helper.make_node("Shape", [f"{cos}.table"], [f"{count}.shape"], start=0, end=1),
        helper.make_node("Squeeze", [f"{count}.shape"], [count]),
        helper.make_node("Range", [view.constant(0), count, view.constant(1)], [f"{ids}.flat"]),
        helper.make_node("Reshape", [f"{ids}.flat", view.constant([-1, positions])], [ids]),
    ]


def _rotation(view: GraphView, node: NodeProto) -> tuple[str, str, str] | None:
    """The input of a rotation that ends at this node, and its cosines and sines."""
    if node.op_type != "Reshape":
        return None
    stack = view.maker(node.input[0], "Concat")
    if stack is None or len(stack.input) != 2:
        return None
    even, odd = (view.chain(name, "Unsqueeze") for name in stack.input)
    if even is None or odd is None:
        return None
    left, right = view.maker(even.input[0], "Sub"), view.maker(odd.input[0], "Add")
    if left is None or right is None:
        return None
    products = [view.maker(name, "Mul") for name in (*left.input, *right.input)]
    if any(product is None for product in products):
        return None
    ec, os, es, oc = ((p.input[0], p.input[1]) for p in products if p is not None)
    if not (ec[0] == es[0] and os[0] == oc[0] and ec[1] == oc[1] and os[1] == es[1]):
        return None
    pairs = [view.chain(name, "Squeeze", "Slice", "Reshape") for name in (ec[0], os[0])]
    first, second = pairs
    if first is None or second is None or first.output[0] != second.output[0]:
        return None
    shape = view.shape(first.output[0])
    if shape is None or len(shape) != 5 or shape[4] != 2:
        return None
    return first.input[0], ec[1], os[1]


WIDTHS: Final = 8
"""The width of a head must be a multiple of this for the runtime's node."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One token's attention to itself and the tokens before it, in one layer of one frame.

    ``projected`` ``[n, 1, (H + 2 G) * D]``: queries, keys and values side by side. ``key`` and ``past_key``
    name the keys up to this token and up to the previous one (None for the first).
    """

    projected: str
    key: str
    past_key: str | None
    heads: int
    groups: int


def fuse_short_attention(graph: GraphProto) -> None:
    """Replace every unmasked attention that reads only keys of its own frame by GroupQueryAttention.

    The node keeps keys and values internally, in one tensor for each layer and token.
    """
    kept: dict[str | None, tuple[str, str, int]] = {None: ("", "", 0)}
    counted: set[int] = set()

    def rule(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
        found = _attention(view, node)
        if found is None or found.past_key not in kept:
            return None
        keys, values, past = kept[found.past_key]
        made = kept[found.key] = (f"{found.key}.keys", f"{found.key}.values", past + 1)
        count = f"fused.past.{past}"
        nodes: list[NodeProto] = []
        if past not in counted:  # the number of tokens before, once for every row
            counted.add(past)
            rows, number = f"{count}.shape", view.constant([past], dtype=np.int32)
            nodes.append(helper.make_node("Shape", [graph.input[0].name], [rows], start=0, end=1))
            nodes.append(helper.make_node("Expand", [number, rows], [count]))
        total = view.constant(past + 1, dtype=np.int32)
        look = helper.make_node(
            "GroupQueryAttention",
            [found.projected, "", "", keys, values, count, total],
            [node.output[0], *made[:2]],
            domain=DOMAIN,
            num_heads=found.heads,
            kv_num_heads=found.groups,
        )
        return [*nodes, look]

    _apply(graph, rule)


def _attention(view: GraphView, node: NodeProto) -> Attention | None:
    """The attention whose output ``[n, 1, H * D]`` this node computes, or None."""
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


DROPPED_EPSILON: Final = 1e-8
"""Largest epsilon of a norm for which the exporter omits the addition as too small."""

Rule: TypeAlias = Callable[[GraphView, NodeProto], list[NodeProto] | None]
"""Maps the last node of a group to the nodes that replace it and make its outputs; None if no group ends
there."""


def fuse_file(path: Path) -> None:
    """Rewrite the graph in ``path``; its data file, if any, is unchanged."""
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
    """A transposition that moves no number, since a moved axis has size 1: a Reshape."""
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
    """A copying selection of the only entry of an axis: a Squeeze, which does not copy."""
    if node.op_type != "Gather" or view.value(node.input[1]) is None:
        return None
    shape, axis = view.shape(node.input[0]), int(view.attribute(node, "axis", 0))
    index = view.value(node.input[1])
    if shape is None or index is None or index.ndim or shape[axis] != 1:
        return None
    return [helper.make_node("Squeeze", [node.input[0], view.constant([axis])], node.output)]


def _scatter(view: GraphView, node: NodeProto) -> list[NodeProto] | None:
    """A ring's write with as many values as positions, at the positions that were read."""
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
    """``x * (alpha / sqrt(mean(x^2) + epsilon))``, RMSNorm, as the runtime's single node for it."""
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
    """The epsilon of ``1 / sqrt(mean(x^2) + epsilon)``; None if ``inverse`` is something else."""
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
    """A product of integers scaled by column: the node that scales the sums itself."""
    if node.op_type != "Mul":
        return None
    product = view.chain(node.input[0], "Cast", "MatMulInteger")
    scale = view.shape(node.input[1])
    if product is None or scale is None or len(scale) != 1:
        return None
    values, weight, *middle = product.input
    inputs = [values, weight, view.constant(1, dtype=np.float32), node.input[1], *middle]
    return [helper.make_node("MatMulIntegerToFloat", inputs, node.output, node.name, domain=DOMAIN)]

"""Rotary position embedding as the one node that ONNX Runtime has for it."""

from __future__ import annotations

from onnx import GraphProto, NodeProto, helper

from antiphon_quantize.onnx_view import DOMAIN, GraphView

INTERLEAVED = 1


def fuse_rotations(graph: GraphProto) -> None:
    """Rotations of interleaved pairs by position, ``[n, H, T, D]`` to the same, by one node each.

    The runtime's node looks angles up in a table by position; here the table is this pass's own angles, a
    line for each row and position, and the positions count its lines.
    """
    view, tables = GraphView(graph), _Tables()
    for node in list(graph.node):
        found = _rotation(view, node)
        if found is not None:
            x, cos, sin = found
            extra, inputs = tables.of(view, cos, sin)
            turn = helper.make_node(
                "RotaryEmbedding", [x, *inputs], node.output, domain=DOMAIN, interleaved=INTERLEAVED
            )
            view.replace(node, [*extra, turn])
    view.write()


class _Tables:
    """The table of each pair of cosines and sines ``[n, 1, T, D / 2]``, made where it is read first."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], list[str]] = {}

    def of(self, view: GraphView, cos: str, sin: str) -> tuple[list[NodeProto], list[str]]:
        """Nodes to add, and the names of positions ``[n, T]``, cosines and sines ``[n * T, D / 2]``."""
        if (cos, sin) in self._made:
            return [], self._made[cos, sin]
        shape = view.shape(cos)
        assert shape is not None
        positions, half = shape[2], shape[3]
        assert positions is not None
        assert half is not None
        ids, count, flat = f"{cos}.ids", f"{cos}.count", [f"{cos}.table", f"{sin}.table"]
        lines = view.constant([-1, half])
        nodes = [
            helper.make_node("Reshape", [cos, lines], [flat[0]]),
            helper.make_node("Reshape", [sin, lines], [flat[1]]),
            helper.make_node("Shape", [flat[0]], [f"{count}.shape"], start=0, end=1),
            helper.make_node("Squeeze", [f"{count}.shape"], [count]),
            helper.make_node("Range", [view.constant(0), count, view.constant(1)], [f"{ids}.flat"]),
            helper.make_node("Reshape", [f"{ids}.flat", view.constant([-1, positions])], [ids]),
        ]
        self._made[cos, sin] = [ids, *flat]
        return nodes, self._made[cos, sin]


def _rotation(view: GraphView, node: NodeProto) -> tuple[str, str, str] | None:
    """What a rotation that ends at this node turns, and its cosines and sines."""
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

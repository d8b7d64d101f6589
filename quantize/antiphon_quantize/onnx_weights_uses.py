"""Which nodes of an ONNX graph read its weights, what they do with them, and the names of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from onnx import GraphProto, NodeProto, TensorProto, helper


class Kind(Enum):
    """What a node does with a weight."""

    PRODUCT = "multiplies its input by the matrix"
    LOOKUP = "looks lines of the table up"
    OTHER = "anything else"


@dataclass(frozen=True, slots=True)
class WeightUse:
    """A node that reads a weight; ``transposed`` if it takes the tensor for ``[out, in]``."""

    node: NodeProto
    kind: Kind
    transposed: bool


def find_uses(graph: GraphProto) -> dict[str, list[WeightUse]]:
    """Which nodes read each matrix or kernel (float32, two axes longer than one), by the tensor's name.

    A product with a transposed matrix counts as a product with the matrix.
    """
    weights = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and sum(extent > 1 for extent in tensor.dims) >= 2
    }
    turned = {
        node.output[0]: weights[node.input[0]]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2
    }
    uses: dict[str, list[WeightUse]] = {}
    for node in graph.node:
        if node.op_type == "Transpose" and node.output[0] in turned:
            continue
        for position, name in enumerate(node.input):
            weight = weights.get(name, turned.get(name))
            if weight is not None:
                kind, transposed = _kind(node, position, weight), name in turned
                transposed ^= node.op_type == "Gemm" and bool(_attributes(node).get("transB"))
                uses.setdefault(weight.name, []).append(WeightUse(node, kind, transposed))
    return uses


def _kind(node: NodeProto, position: int, weight: TensorProto) -> Kind:
    found = _attributes(node)
    if len(weight.dims) == 2:
        plain = found.get("alpha", 1.0) == found.get("beta", 1.0) == 1.0 and not found.get("transA")
        if position == 1 and node.op_type in ("MatMul", "Gemm") and plain:
            return Kind.PRODUCT
        if position == 0 and node.op_type == "Gather" and not found.get("axis"):
            return Kind.LOOKUP
    return Kind.OTHER


def _attributes(node: NodeProto) -> dict[str, object]:
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def weight_name(tensor: TensorProto, uses: list[WeightUse]) -> str:
    """The name that rules see: the tensor's own if it is a path of modules, else that of its first reader."""
    if "." in tensor.name:
        return str(tensor.name)
    for use in uses:
        modules = _modules(use.node)
        if modules:
            return f"{modules}.weight"
    return str(tensor.name)


def _modules(node: NodeProto) -> str:
    """The innermost module that torch.export notes at a node: its scopes end with module and operation."""
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = [part.strip(" '\"") for part in entry.value.strip("[]").split(",")]
            return scopes[-2] if len(scopes) > 1 else ""
    return ""

"""A graph as rules read and rewrite it: who makes a tensor, who reads it, its shape and its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

DOMAIN: Final = "com.microsoft"
"""Of the operators that ONNX Runtime adds."""
CONSTANT_BYTES: Final = 4096
"""Values of larger tensors are weights, which no rule looks at."""

Shape: TypeAlias = tuple[int | None, ...]
"""Extents by axis; None is the number of rows, or unknown."""


class GraphView:
    """One pass over a graph. Replacements are gathered, and :meth:`write` puts them in place at once."""

    def __init__(self, graph: GraphProto) -> None:
        """Look at a graph."""
        self.graph = graph
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        told = (*graph.value_info, *graph.input, *graph.output)
        self._shapes = {value.name: _extents(value) for value in told}
        self._replaced: dict[int, list[NodeProto]] = {}

    def maker(self, name: str, operator: str) -> NodeProto | None:
        """The node that makes a tensor, where it is of this operator."""
        node = self._makers.get(name)
        return node if node is not None and node.op_type == operator else None

    def chain(self, name: str, *operators: str) -> NodeProto | None:
        """The last of the nodes that are found from a tensor upwards by their first inputs."""
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
        """A tensor's extents, where the graph tells them."""
        if name in self._weights:
            return tuple(self._weights[name].dims)
        return self._shapes.get(name)

    def value(self, name: str) -> NDArray[Any] | None:
        """A small constant."""
        tensor = self._weights.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return numpy_helper.to_array(tensor) if tensor.ByteSize() < CONSTANT_BYTES else None

    def attribute(self, node: NodeProto, name: str, default: Any = None) -> Any:
        """A node's attribute."""
        for entry in node.attribute:
            if entry.name == name:
                return helper.get_attribute_value(entry)
        return default

    def constant(self, values: int | Sequence[int], *, dtype: type[np.generic] = np.int64) -> str:
        """The name of a constant, added where the graph has none like it."""
        array = np.array(values, dtype)
        name = f"fused.{array.dtype}.{'x'.join(map(str, array.ravel()))}.{array.ndim}"
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(array, name)
            self.graph.initializer.append(self._weights[name])
        return name

    def flatten(self, name: str) -> bool:
        """Give a weight with one long axis that axis only; whether it is such a weight."""
        tensor = self._weights.get(name)
        if tensor is None or sum(extent > 1 for extent in tensor.dims) != 1:
            return False
        width = max(tensor.dims)
        del tensor.dims[:]
        tensor.dims.append(width)
        return True

    def replace(self, node: NodeProto, found: list[NodeProto]) -> None:
        """Put nodes in the place of one; what it alone read goes too."""
        for new in found:
            if not new.metadata_props:
                new.metadata_props.extend(node.metadata_props)
        self._replaced[id(node)] = found

    def write(self) -> None:
        """Make the replacements, and leave out nodes and constants that have no reader left."""
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


def _extents(value: ValueInfoProto) -> Shape:
    return tuple(
        entry.dim_value if entry.HasField("dim_value") else None for entry in value.type.tensor_type.shape.dim
    )

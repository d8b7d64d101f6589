"""Which state of a graph may be updated where it lies.

A runtime that is given the same memory for an input and an output may write the output while other nodes
have yet to read the input: with the positions of a ring that was silently wrong. So a pair is aliased only
where every reader of the input is known to come before the write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import onnx

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten"})
"""Operators whose output may be their first input's memory: who reads it, reads the input."""

IN_PLACE = frozenset({"ScatterND", "ScatterElements"})
"""Operators that update their first input by a few values, and are done with it when they write."""


def aliasable(graph: onnx.GraphProto, pairs: Mapping[str, str]) -> frozenset[str]:
    """The inputs among ``pairs`` (input to output) that may share their output's memory.

    Every node that reads the input, or a view of it, has to be an ancestor of the node that writes the
    output, or be that node itself where it works in place. A graph with inner graphs has none.
    """
    nodes = list(graph.node)
    if any(attribute.HasField("g") for node in nodes for attribute in node.attribute):
        return frozenset()
    readers: dict[str, list[int]] = defaultdict(list)
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.input:
            readers[name].append(index)
        for name in node.output:
            maker[name] = index
    return frozenset(name for name, output in pairs.items() if _is_sound(nodes, readers, maker, name, output))


def _is_sound(
    nodes: list[onnx.NodeProto],
    readers: Mapping[str, list[int]],
    maker: Mapping[str, int],
    name: str,
    output: str,
) -> bool:
    writer = maker.get(output)
    if writer is None or nodes[writer].op_type in VIEWS:
        return False
    before = _ancestors(nodes, maker, writer)
    names = [name]
    for read in names:  # grows by the views that are found
        for index in readers.get(read, []):
            node = nodes[index]
            if node.op_type == "Shape":
                continue
            if node.op_type in VIEWS and node.input[0] == read:
                names.extend(node.output)
            elif index == writer:
                if node.op_type not in IN_PLACE or node.input[0] != read or read in list(node.input)[1:]:
                    return False
            elif index not in before:
                return False
    return True


def _ancestors(nodes: list[onnx.NodeProto], maker: Mapping[str, int], index: int) -> set[int]:
    found: set[int] = set()
    waiting = [index]
    while waiting:
        for name in nodes[waiting.pop()].input:
            made_by = maker.get(name)
            if made_by is not None and made_by not in found:
                found.add(made_by)
                waiting.append(made_by)
    return found

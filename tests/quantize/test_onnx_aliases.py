"""In-place state updates: only after the last reader."""

from __future__ import annotations

import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from antiphon_quantize.onnx_export import aliasable

PAIR = {"ring": "ring.next"}


def graph(*nodes: NodeProto) -> GraphProto:
    ring = helper.make_tensor_value_info("ring", TensorProto.FLOAT, ["rows", 8])
    return helper.make_graph(list(nodes), "g", [ring], [])


def node(kind: str, inputs: str, output: str) -> NodeProto:
    return helper.make_node(kind, inputs.split(), [output])


WRITE = node("ScatterND", "ring index new", "ring.next")
SOUND = {
    "read by the writer alone": [WRITE],
    "read before": [node("GatherND", "ring index", "old"), node("Add", "old x", "new"), WRITE],
    "its shape is read at any time": [WRITE, node("Shape", "ring", "size")],
    "read from the next value": [WRITE, node("MatMul", "q ring.next", "scores")],
    "not read": [node("Add", "x y", "ring.next")],
}
UNSOUND = {
    "read after": [WRITE, node("MatMul", "q ring", "scores")],
    "a view of it is read after": [
        node("Reshape", "ring shape", "view"),
        WRITE,
        node("MatMul", "q view", "scores"),
    ],
    "written by what works on the whole of it": [node("Add", "ring one", "ring.next")],
    "also the index": [node("ScatterND", "ring ring new", "ring.next")],
    "handed on": [node("Identity", "ring", "ring.next")],
    "never written": [node("MatMul", "q ring", "scores")],
}


@pytest.mark.parametrize("case", SOUND)
def test_state_that_is_done_with_is_written_in_place(case: str) -> None:
    assert aliasable(graph(*SOUND[case]), PAIR) == {"ring"}


@pytest.mark.parametrize("case", UNSOUND)
def test_state_that_may_still_be_read_is_not(case: str) -> None:
    assert aliasable(graph(*UNSOUND[case]), PAIR) == frozenset()


def test_the_order_of_the_file_does_not_count() -> None:
    """A runtime may run nodes in any order their inputs allow."""
    reader = node("MatMul", "q ring", "scores")
    assert aliasable(graph(reader, WRITE), PAIR) == frozenset()
    assert aliasable(graph(reader, node("Add", "x scores", "new"), WRITE), PAIR) == {"ring"}


def test_a_graph_with_graphs_inside_is_left_alone() -> None:
    inner = helper.make_graph([node("Add", "ring x", "y")], "inner", [], [])
    branch = helper.make_node("If", ["condition"], ["z"], then_branch=inner, else_branch=inner)
    assert aliasable(graph(WRITE, branch), PAIR) == frozenset()

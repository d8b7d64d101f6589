"""The graph table of a manifest: errors name the invalid entry."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from antiphon.errors import CheckpointFormatError
from antiphon.models.manifest import graph_from_json

GRAPH: dict[str, Any] = {
    "file": "onnx.encode",
    "opset": 20,
    "inputs": [
        {"name": "pcm", "dtype": "float32", "shape": [1920]},
        {"name": "past", "dtype": "float32", "shape": [3, 6]},
    ],
    "outputs": [{"name": "past.next", "dtype": "float32", "shape": [3, 6]}],
    "state": [{"name": "past", "output": "past.next", "fill": 0.0, "aliased": True}],
}


def test_a_tensor_knows_its_size() -> None:
    past = graph_from_json(GRAPH, "g").input("past")
    array = past.allocate(5)
    assert (array.shape, array.dtype) == ((5, 3, 6), np.dtype(np.float32))
    assert array.nbytes == 5 * past.row_bytes
    assert str(past) == "float32 [rows, 3, 6]"


def test_state_that_is_only_read_has_no_next_value() -> None:
    values = deepcopy(GRAPH)
    values["state"][0]["output"] = None
    values["outputs"] = []
    graph = graph_from_json(values, "g")
    assert graph.state[0].output is None
    assert asdict(graph)["state"][0]["output"] is None
    values["state"][0]["name"] = "pas"
    with pytest.raises(CheckpointFormatError, match="inputs lack 'pas'"):
        graph_from_json(values, "g")


@pytest.mark.parametrize(
    ("part", "key", "value", "sentence"),
    [
        ("inputs", "dtype", "float8", "g.inputs.pcm: dtype is 'float8', known: bool, float16, float32"),
        ("inputs", "shape", ["rows", 3], "g.inputs.shape is 'rows', a whole number is needed"),
        ("inputs", "nname", "x", r"g.inputs has an unknown key 'nname' \(did you mean 'name'\?\)"),
        ("state", "name", "pas", r"graph onnx.encode: inputs lack 'pas' \(did you mean 'past'\?\)"),
        ("state", "output", "next", "graph onnx.encode: outputs lack 'next'.*there are past.next"),
        ("outputs", "shape", [3, 5], r"past is float32 \[rows, 3, 6\], but .* is float32 \[rows, 3, 5\]"),
    ],
)
def test_what_is_wrong_is_named(part: str, key: str, value: object, sentence: str) -> None:
    graph = deepcopy(GRAPH)
    graph[part][0][key] = value
    with pytest.raises(CheckpointFormatError, match=sentence):
        graph_from_json(graph, "g")

"""Fusion of small nodes: matches, exclusions, and unchanged results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from antiphon_quantize.onnx_fusions import fuse_graph
from tests.backends.onnx.exports import exported
from tests.quantize.onnx_graphs import run_graph


def graph(
    nodes: Sequence[NodeProto], shapes: dict[str, list[int | str]], constants: Mapping[str, NDArray[Any]]
) -> onnx.ModelProto:
    """A graph from ``x`` to ``y``; ``shapes`` of all its tensors, with the rows by name."""
    told = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name, of in shapes.items()}
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    made = helper.make_graph(list(nodes), "small", [told.pop("x")], [told.pop("y")], weights)
    made.value_info.extend(told.values())
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def norm(*, added: float | None) -> onnx.ModelProto:
    """RMSNorm as the exporter writes it; it leaves an addend of 1e-8 out."""
    nodes = [helper.make_node("Pow", ["x", "two"], ["square"])]
    nodes += [helper.make_node("ReduceMean", ["square", "axis"], ["mean"])]
    if added is not None:
        nodes += [helper.make_node("Add", ["mean", "epsilon"], ["sum"])]
    nodes += [helper.make_node("Sqrt", ["mean" if added is None else "sum"], ["root"])]
    nodes += [helper.make_node("Reciprocal", ["root"], ["inverse"])]
    nodes += [helper.make_node("Mul", ["alpha", "inverse"], ["scale"])]
    nodes += [helper.make_node("Mul", ["x", "scale"], ["y"])]
    constants = {
        "two": np.array(2, np.float32),
        "axis": np.array([-1]),
        "epsilon": np.array(added or 0, np.float32),
        "alpha": np.linspace(0.5, 2, 8, dtype=np.float32).reshape(1, 1, 8),
    }
    return graph(nodes, {"x": ["rows", 1, 8], "y": ["rows", 1, 8]}, constants)


@pytest.mark.parametrize("added", [None, 1e-5])
def test_a_norm_is_one_node_and_the_norm_of_nothing_is_nothing(tmp_path: Path, added: float | None) -> None:
    model = norm(added=added)
    x = np.random.default_rng(0).standard_normal((3, 1, 8)).astype(np.float32)
    onnx.save(model, tmp_path / "before.onnx")
    (wanted,) = run_graph(tmp_path / "before.onnx", {"x": x})
    fuse_graph(model)
    assert operators(model) == {"SimplifiedLayerNormalization": 1}
    onnx.save(model, tmp_path / "after.onnx")
    (found,) = run_graph(tmp_path / "after.onnx", {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    (of_nothing,) = run_graph(tmp_path / "after.onnx", {"x": 0 * x})
    assert not of_nothing.any()


@pytest.mark.parametrize(("heads", "wanted"), [(1, "Reshape"), (3, "Transpose")])
def test_a_transposition_stays_where_it_moves_numbers(tmp_path: Path, heads: int, wanted: str) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1, 3])]
    model = graph(nodes, {"x": ["rows", 2, heads, 4], "y": ["rows", heads, 2, 4]}, {})
    fuse_graph(model)
    assert operators(model) == {wanted: 1}
    onnx.save(model, tmp_path / "fused.onnx")
    x = np.arange(16 * heads, dtype=np.float32).reshape(2, 2, heads, 4)
    (found,) = run_graph(tmp_path / "fused.onnx", {"x": x})
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1, 3))


def test_the_stages_of_a_model_have_no_small_pieces_left() -> None:
    checkpoint = exported("moshi")
    spec = checkpoint.spec.lm
    assert spec is not None
    found = {
        stage: operators(onnx.load(checkpoint.file(form.file))) for stage, form in checkpoint.graphs.items()
    }
    layers, depths = spec.config["num_layers"], spec.config["depformer_num_layers"]
    assert found["lm"]["RotaryEmbedding"] == 2 * layers
    assert found["lm"]["SkipSimplifiedLayerNormalization"] == 2 * layers
    assert found["depformer"]["GroupQueryAttention"] == depths * spec.dep_q
    assert not found["depformer"]["Softmax"]
    for stage in ("lm", "depformer"):
        assert not found[stage].keys() & {"Pow", "ReduceMean", "Reciprocal"}
    assert all(stage["ScatterND"] == stage["GatherND"] for stage in found.values())

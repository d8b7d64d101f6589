"""Small hand-written ONNX graphs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from antiphon.backends.onnx.sessions import onnxruntime, session_options
from antiphon_quantize.recipe import Recipe, Rule

Array = NDArray[np.float32]


def recipe(bits: int = 8, block: int = 32, *, search: bool = False, **rules: int) -> Recipe:
    """Everything in ``bits``, but tensors whose names begin with a key of ``rules`` in that many."""
    chosen = [Rule(f"{name}*", "because the test says so", own) for name, own in rules.items()]
    return Recipe("", "test", bits, (*chosen, Rule("*", "everything else")), (), {}, block, search)


def write_graph(
    path: Path,
    nodes: Sequence[NodeProto],
    weights: Mapping[str, Array],
    *,
    inputs: Mapping[str, int] | None = None,
    external: bool = False,
) -> Path:
    """Write a graph from ``inputs`` (int64 if the name begins with "ids", else float32 ``[n, width]``)."""
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    ins = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name.startswith("ids") else TensorProto.FLOAT, ["n", width]
        )
        for name, width in (inputs or {"x": next(iter(weights.values())).shape[0]}).items()
    ]
    made, read = {out for node in nodes for out in node.output}, {x for node in nodes for x in node.input}
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(made - read)]
    graph = helper.make_graph(list(nodes), "test", ins, outs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return path


def run_graph(path: Path, feeds: Mapping[str, NDArray[np.generic]]) -> list[Array]:
    """The graph's outputs, by the names' order."""
    session = onnxruntime.InferenceSession(str(path), session_options(1), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def product_graph(path: Path, weight: Array, *, external: bool = False) -> Path:
    """``y = x weight`` with ``weight [in, out]``."""
    nodes = [helper.make_node("MatMul", ["x", "layer.weight"], ["y"])]
    return write_graph(path, nodes, {"layer.weight": weight}, external=external)


def nbits_model(x: Array, values: Array, block: int, *, width: int = 127) -> Array:
    """MatMulNBits with INT8 inputs, in numpy: ``x [n, in]`` rounded to a scale a row and block.

    ``values [out, in]`` are what the weights stand for.
    """
    count = -(-x.shape[1] // block)
    padded = np.zeros((len(x), count * block), np.float32)
    padded[:, : x.shape[1]] = x
    blocks = padded.reshape(len(x), count, block)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(width)
    rounded = np.rint(blocks / np.where(scale == 0, np.float32(1), scale)) * scale
    product: Array = rounded.reshape(len(x), -1)[:, : x.shape[1]] @ values.T
    return product

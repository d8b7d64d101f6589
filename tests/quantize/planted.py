"""Planted damage: small changes to a checkpoint's files, typical of faulty quantizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import load_file, save_file

from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import MANIFEST_NAME, file_entry

Tensors = dict[str, torch.Tensor]
FIRST = "transformer.layers.0.self_attn.in_proj_weight"
SECOND = "transformer.layers.1.self_attn.in_proj_weight"
OVERFLOWING = "transformer.layers.1.gating.linear_in.weight"
END_OF_PADDING = 0


def damaged(
    source: Checkpoint, folder: Path, damage: Callable[[Tensors], None], name: str = "model.safetensors"
) -> Checkpoint:
    """A copy of a folder with a manifest, its language model's tensors changed by ``damage``."""
    shutil.copytree(source.root, folder)
    tensors = load_file(folder / name)
    damage(tensors)
    save_file(tensors, folder / name)
    return relisted(folder)


def relisted(folder: Path, **lm: Any) -> Checkpoint:
    """The folder's manifest brought in line with the files it has, and ``lm`` put over the arguments."""
    path = folder / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    for entry in manifest["files"].values():
        if (folder / entry["path"]).is_file():
            fresh = file_entry(folder, entry["path"])
            entry |= {"sha256": fresh.sha256, "bytes": fresh.bytes}
    manifest["lm"] |= lm
    path.write_text(json.dumps(manifest))
    return load_checkpoint(str(folder))


def too_large(tensors: Tensors) -> None:
    """Every scale is a tenth too large."""
    for name in tensors:
        if name.endswith("_scale"):
            tensors[name] *= 1.1


def swapped(tensors: Tensors) -> None:
    """Two layers have each other's scales."""
    one, other = f"{FIRST}_scale", f"{SECOND}_scale"
    tensors[one], tensors[other] = tensors[other], tensors[one]


def overflown(tensors: Tensors) -> None:
    """A layer went through float16 at a scale at which some of its weights do not fit."""
    weight = tensors.pop(OVERFLOWING).float() * tensors.pop(f"{OVERFLOWING}_scale")
    up = 60_000 / weight.abs().quantile(0.99)
    tensors[OVERFLOWING] = (weight * up).half().float() / up


def biased(tensors: Tensors) -> None:
    """The end of padding is likelier by half a nat, before the softmax."""
    tensors["text_linear.bias"][END_OF_PADDING] += 0.5


def without_delay(source: Checkpoint, folder: Path) -> Checkpoint:
    """Every stream at once."""
    shutil.copytree(source.root, folder)
    assert source.spec.lm is not None
    return relisted(folder, delays=[0] * len(source.spec.lm.delays))


Graph = onnx.GraphProto


def damaged_graph(source: Checkpoint, folder: Path, name: str, damage: Callable[[Graph], None]) -> Checkpoint:
    """A copy of a folder of graphs in which the graph ``name`` is changed by ``damage``."""
    shutil.copytree(source.root, folder)
    path = folder / f"{name}.onnx"
    model = onnx.load(str(path))
    damage(model.graph)
    onnx.save(model, str(path))
    return relisted(folder)


def scales_of(graph: Graph) -> list[TensorProto]:
    """The scales of the rounded products, in the order in which they run."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    return [held[node.input[3]] for node in graph.node if node.op_type == "MatMulIntegerToFloat"]


def replace_values(tensor: TensorProto, values: np.ndarray[Any, Any]) -> None:
    """Give an initializer other values of its shape."""
    tensor.CopyFrom(numpy_helper.from_array(values.astype(numpy_helper.to_array(tensor).dtype), tensor.name))


def too_large_in_graph(graph: Graph) -> None:
    """See :func:`too_large`."""
    for scale in scales_of(graph):
        replace_values(scale, numpy_helper.to_array(scale) * 1.1)


def swapped_in_graph(graph: Graph) -> None:
    """See :func:`swapped`: the first two products of one shape."""
    first, *others = scales_of(graph)
    second = next(other for other in others if list(other.dims) == list(first.dims))
    one, other = (numpy_helper.to_array(scale).copy() for scale in (first, second))
    replace_values(first, other)
    replace_values(second, one)


def overflown_in_graph(graph: Graph) -> None:
    """A layer's output leaves float16 on its way."""
    node = next(node for node in graph.node if node.op_type == "MatMulIntegerToFloat")
    index = list(graph.node).index(node)
    wide = node.output[0]
    node.output[0] = f"{wide}.narrow"
    factor = numpy_helper.from_array(np.array(1e8, np.float32), "planted.factor")
    graph.initializer.append(factor)
    steps = [
        helper.make_node("Mul", [f"{wide}.narrow", factor.name], [f"{wide}.large"]),
        helper.make_node("Cast", [f"{wide}.large"], [f"{wide}.half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [f"{wide}.half"], [f"{wide}.full"], to=TensorProto.FLOAT),
        helper.make_node("Div", [f"{wide}.full", factor.name], [wide]),
    ]
    for offset, step in enumerate(steps):
        graph.node.insert(index + 1 + offset, step)


def biased_in_graph(graph: Graph) -> None:
    """See :func:`biased`."""
    node = next(node for node in graph.node if "logits" in node.output)
    node.output[0] = "planted.logits"
    width = next(out for out in graph.output if out.name == "logits").type.tensor_type.shape.dim[-1].dim_value
    bias = np.zeros(width, np.float32)
    bias[END_OF_PADDING] = 0.5
    graph.initializer.append(numpy_helper.from_array(bias, "planted.bias"))
    graph.node.append(helper.make_node("Add", ["planted.logits", "planted.bias"], ["logits"]))

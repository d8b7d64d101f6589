"""A graph is exported without computation, with weights from any source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.state import Step
from antiphon_quantize.onnx_export import export_stage, save_whole
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.onnx_weights import quantize_graph
from tests.quantize.onnx_graphs import Array, product_graph, recipe, run_graph


class Remembering(ExportedStage):
    """Numbers through a matrix, and their sum with those of the frame before."""

    inputs, outputs = ("x",), ("sum",)

    def __init__(self) -> None:
        super().__init__([TensorSpec("last", (3,), torch.float32)])
        self.linear = nn.Linear(4, 3)
        self.computed = 0

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        self.computed += not isinstance(inputs[0], FakeTensor)
        new = self.linear(inputs[0])
        found = new + step.read("last")
        step.write("last", new)
        return (found,)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        return (torch.zeros(rows, 4),)


def test_an_export_computes_nothing_and_knows_every_shape(tmp_path: Path) -> None:
    stage, saved = Remembering(), []

    def save(program: torch.onnx.ONNXProgram, path: Path) -> None:
        saved.append(path)
        save_whole(program, path)

    form = export_stage(stage, tmp_path / "a.onnx", "a", save)
    assert stage.computed == 0
    assert saved == [tmp_path / "a.onnx"]
    assert [str(tensor) for tensor in form.inputs] == [
        "float32 [rows, 4]",
        "bool [rows]",
        "float32 [rows, 3]",
    ]
    assert [str(tensor) for tensor in form.outputs] == ["float32 [rows, 3]", "float32 [rows, 3]"]
    assert [(entry.name, entry.output, entry.fill) for entry in form.state] == [("last", "last.next", 0.0)]


def test_weights_are_read_from_where_the_caller_says(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1).standard_normal((64, 16), dtype=np.float32)
    source = product_graph(tmp_path / "a.onnx", np.zeros((64, 16), np.float32))
    asked: list[tuple[str, Path]] = []

    def read(tensor: TensorProto, folder: Path) -> Array:
        asked.append((tensor.name, folder))
        return drawn

    report = quantize_graph(source, tmp_path / "b.onnx", recipe(8), read)
    assert asked == [("layer.weight", tmp_path)]
    assert 0 < report.errors["layer.weight"] < 0.02
    x = np.random.default_rng(2).standard_normal((2, 64), dtype=np.float32)
    (found,) = run_graph(tmp_path / "b.onnx", {"x": x})
    assert np.abs(found - x @ drawn).max() < 0.05 * np.abs(x @ drawn).max()
    assert not np.any(onnx.numpy_helper.to_array(onnx.load(source).graph.initializer[0]))

"""Graphs of a language model too large for float32: exported without weights, then given seeded ones.

Each weight is drawn, rounded as a recipe says and written before the next, so memory holds one matrix and the
disk the rounded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import onnx_ir
import torch
from onnx import TensorProto

from antiphon.backends.torch.modules.lm import LanguageModel
from antiphon.models.graphs import graph_to_json
from antiphon_quantize.onnx_export import export_stage
from antiphon_quantize.onnx_modules import DepformerStage, ExportedStage, LanguageStage
from antiphon_quantize.onnx_rings import round_rings
from antiphon_quantize.onnx_weights import quantize_graph
from antiphon_quantize.onnx_weights_files import Array, is_external, read_tensor
from antiphon_quantize.recipe import load_recipe
from lab.bench.harness import tell

DRAWN: Final = (1 << 22) + 17
"""Numbers that are drawn, all weights made of them: no multiple of a row, so that no two rows are equal."""
NO_FILE: Final = "not-written"
"""Where a graph without weights says that they are."""
TOLD_NUMBERS: Final = 1_000_000_000
MATRIX_BYTES: Final = 1024
"""A constant of two axes below this is written with the graph."""


def write_graphs(folder: Path, config: Mapping[str, Any], recipe: str) -> None:
    """Every stage of a language model into ``folder/RECIPE/STAGE.onnx`` and ``.json`` beside it.

    Scales are not searched for: they have no part in the time.
    """
    (folder / recipe).mkdir(parents=True, exist_ok=True)
    rules, read = replace(load_recipe("onnx", recipe), search=False), seeded_reader()
    for name, make in stages(config, rules.int8_ring_bytes).items():
        tell(f"exporting {name} without weights")
        source = folder / f"{name}.onnx"
        form = export_stage(make(), source, name, save_without_weights)
        tell(f"writing the weights of {name} in {recipe}")
        quantize_graph(source, folder / recipe / source.name, rules, told(read))
        source.unlink()
        (folder / recipe / f"{name}.json").write_text(json.dumps(graph_to_json(form)))


def stages(config: Mapping[str, Any], int8_ring_bytes: int | None) -> dict[str, Callable[[], ExportedStage]]:
    """The stages of a language model by name, with memory for weights that nothing has written to."""
    with torch.device("meta"):
        model = LanguageModel(config, steps=config["dep_q"])
    model = model.to_empty(device="cpu").prepare()
    for tensor in model.state_dict().values():
        if not is_matrix(tensor.shape):
            tensor.fill_(1)
    round_rings(model.transformer, int8_ring_bytes)
    found: dict[str, Callable[[], ExportedStage]] = {"lm": lambda: LanguageStage(model)}
    if (depformer := model.depformer) is not None:
        found["depformer"] = lambda: DepformerStage(depformer)
    return found


def save_without_weights(program: torch.onnx.ONNXProgram, path: Path) -> None:
    """Write a graph whose matrices have a name, a shape and no file."""
    for name, value in program.model.graph.initializers.items():
        weight = value.const_value
        if weight is None or weight.dtype != onnx_ir.DataType.FLOAT or weight.nbytes < MATRIX_BYTES:
            continue
        if is_matrix(weight.shape):
            shape = onnx_ir.Shape(weight.shape.numpy())
            value.const_value = onnx_ir.ExternalTensor(
                NO_FILE, 0, weight.nbytes, weight.dtype, name=name, shape=shape, base_dir=path.parent
            )
    onnx_ir.save(program.model, path)


def is_matrix(shape: Iterable[object]) -> bool:
    """Whether two axes are longer than one."""
    return sum(extent != 1 for extent in shape) >= 2


def told(read: Callable[[TensorProto, Path], Array]) -> Callable[[TensorProto, Path], Array]:
    """The same, with a line of progress after each thousand million numbers."""
    numbers = 0

    def read_and_tell(tensor: TensorProto, folder: Path) -> Array:
        nonlocal numbers
        before, found = numbers // TOLD_NUMBERS, read(tensor, folder)
        numbers += found.size
        if numbers // TOLD_NUMBERS > before:
            tell(f"  {numbers / 1e9:.1f} thousand million weights")
        return found

    return read_and_tell


def seeded_reader(seed: int = 0) -> Callable[[TensorProto, Path], Array]:
    """What gives each weight without a file its numbers, which depend on its name and the seed alone."""
    drawn = np.random.default_rng(seed).standard_normal(DRAWN, dtype=np.float32)

    def read(tensor: TensorProto, folder: Path) -> Array:
        if not is_external(tensor):
            return read_tensor(tensor, folder)
        shape = tuple(tensor.dims)
        first = crc32(tensor.name.encode()) % DRAWN
        loudness = np.float32(min(shape) ** -0.5)
        numbers: Array = np.resize(np.roll(drawn, first) * loudness, shape)
        return numbers

    return read

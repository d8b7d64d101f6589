"""One stage to one ONNX file, and the entry of the graph table that describes it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir
import torch

from antiphon.models.graphs import ROWS, GraphFormat, StateFormat, TensorFormat
from antiphon_quantize.onnx_aliases import aliasable
from antiphon_quantize.onnx_fusions import fuse_file
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.onnx_operators import OPSET, TRANSLATIONS

EXEC = "exec"
NEXT = ".next"
"""What the name of an output that is a state's next value ends with."""

EXAMPLE_ROWS = 3
"""Rows of the example: neither 1, which exporters take for a constant, nor the size of anything else."""

MODULES = "pkg.torch.onnx.name_scopes"
"""The exporter's note of a node's modules, by which recipes find weights that have lost their names."""

INLINE_BYTES = 1 << 30
"""Weights above this go into a file of their own next to the graph; a protobuf ends at 2 GiB."""


Save: TypeAlias = Callable[[torch.onnx.ONNXProgram, Path], None]


def save_whole(program: torch.onnx.ONNXProgram, path: Path) -> None:
    """Write a graph to ``path``; large weights go to ``path`` with ``.data`` added."""
    values = [weight.const_value for weight in program.model.graph.initializers.values()]
    weights_bytes = sum(value.nbytes for value in values if value is not None)
    program.save(path, external_data=weights_bytes > INLINE_BYTES)


def export_stage(stage: ExportedStage, path: Path, role: str, save: Save = save_whole) -> GraphFormat:
    """Write a stage to ``path`` and describe it. Nothing is computed: no weight and no state is read."""
    state = [torch.empty((EXAMPLE_ROWS, *spec.shape), dtype=spec.dtype) for spec in stage.specs]
    execute = [torch.ones(EXAMPLE_ROWS, dtype=torch.bool)] if state else []
    arguments = (*stage.example(EXAMPLE_ROWS), *execute, *state)
    names = [spec.name for spec in stage.specs]
    inputs = [*stage.inputs, *([EXEC] if state else []), *names]
    following = {name: name + NEXT for name in stage.written}
    outputs = [*stage.outputs, *following.values()]
    rows = torch.export.Dim(ROWS, min=1, max=4096)
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            stage.eval(),
            arguments,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=(tuple({0: rows} for _ in arguments),),
            input_names=inputs,
            output_names=outputs,
            custom_translation_table=TRANSLATIONS,
            verbose=False,
        )
    assert program is not None
    _strip(program.model)
    save(program, path)
    fuse_file(path)
    graph = onnx.load(path, load_external_data=False).graph
    aliased = aliasable(graph, following)
    return GraphFormat(
        role,
        OPSET,
        tuple(map(_tensor, graph.input)),
        tuple(map(_tensor, graph.output)),
        tuple(
            StateFormat(spec.name, following.get(spec.name), float(spec.fill), spec.name in aliased)
            for spec in stage.specs
        ),
    )


def _strip(model: onnx_ir.Model) -> None:
    """Drop what the exporter notes at every node but the modules it came from: half of a small graph."""
    for node in model.graph.all_nodes():
        for key in [key for key in node.metadata_props if key != MODULES]:
            del node.metadata_props[key]


def _tensor(value: onnx.ValueInfoProto) -> TensorFormat:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return TensorFormat(value.name, str(dtype), tuple(extent.dim_value for extent in kind.shape.dim[1:]))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks on packages that are not there, and on its own parts, to itself."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)

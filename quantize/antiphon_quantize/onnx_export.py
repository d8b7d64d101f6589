"""Exports one stage of a model to an ONNX file, and describes it for the manifest's table of graphs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TypeAlias

import onnx
import torch

from antiphon.models.manifest import ROWS, GraphFormat, StateFormat, TensorFormat
from antiphon_quantize.onnx_fusions import fuse_file
from antiphon_quantize.onnx_int8 import OPSET, TRANSLATIONS
from antiphon_quantize.onnx_modules import ExportedStage
from antiphon_quantize.torch_rounding import quietly

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten"})
"""Operators whose output may share the memory of their first input; a node that reads the output then reads
the input.
"""

IN_PLACE = frozenset({"ScatterND", "ScatterElements"})
"""Operators that change a few values of their first input, and read it before they write."""

KEPT: Mapping[str, Mapping[int, int]] = {"GroupQueryAttention": {1: 3, 2: 4}}
"""Operators that do so to another input: for each output, the input whose memory it may share."""


def aliasable(graph: onnx.GraphProto, pairs: Mapping[str, str]) -> frozenset[str]:
    """The inputs among ``pairs`` (input to output) that may share their output's memory.

    Every node that reads the input, or a view of it, has to be an ancestor of the node that writes the
    output, or be that node itself if it works in place. The result is empty for a graph with inner graphs.
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
                kept = KEPT.get(node.op_type, {}).get(list(node.output).index(output), -1)
                place = 0 if node.op_type in IN_PLACE else kept
                if [at for at, it in enumerate(node.input) if it == read] != [place]:
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


EXEC = "exec"
NEXT = ".next"
"""Suffix of an output that is a state's next value."""

EXAMPLE_ROWS = 3
"""Number of rows of the example. It must not be 1, which exporters treat as a constant, nor equal to another
size.
"""

MODULES = "pkg.torch.onnx.name_scopes"
"""The exporter's metadata of a node's modules, with which recipes find weights without names."""

INLINE_BYTES = 1 << 30
"""Bytes above which weights go into a file next to the graph; a protobuf is limited to 2 GiB."""


Save: TypeAlias = Callable[[torch.onnx.ONNXProgram, Path], None]


def save_whole(program: torch.onnx.ONNXProgram, path: Path) -> None:
    """Write a graph to ``path``; large weights go to ``path`` with ``.data`` added."""
    values = [weight.const_value for weight in program.model.graph.initializers.values()]
    weights_bytes = sum(value.nbytes for value in values if value is not None)
    program.save(path, external_data=weights_bytes > INLINE_BYTES)


def export_stage(stage: ExportedStage, path: Path, role: str, save: Save = save_whole) -> GraphFormat:
    """Write the graph of a stage to ``path`` and describe it; the stage is traced, not run."""
    state = [torch.empty((EXAMPLE_ROWS, *spec.shape), dtype=spec.dtype) for spec in stage.specs]
    execute = [torch.ones(EXAMPLE_ROWS, dtype=torch.bool)] if state else []
    arguments = (*stage.example(EXAMPLE_ROWS), *execute, *state)
    names = [spec.name for spec in stage.specs]
    inputs = [*stage.inputs, *([EXEC] if state else []), *names]
    following = {name: name + NEXT for name in stage.written}
    outputs = [*stage.outputs, *following.values()]
    rows = torch.export.Dim(ROWS, min=1, max=4096)
    with torch.no_grad(), quietly(), warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")  # it warns about missing packages, and about its own parts
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
    for node in program.model.graph.all_nodes():  # metadata other than MODULES would be half of a small graph
        for key in [key for key in node.metadata_props if key != MODULES]:
            del node.metadata_props[key]
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


def _tensor(value: onnx.ValueInfoProto) -> TensorFormat:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return TensorFormat(value.name, str(dtype), tuple(extent.dim_value for extent in kind.shape.dim[1:]))

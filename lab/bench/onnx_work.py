"""The work of a graph's nodes: the bytes that they read again for each frame, and their multiplications."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from antiphon.backends.onnx.sessions import onnxruntime, session_options
from antiphon_quantize.onnx_export import IN_PLACE, VIEWS
from lab.bench.cpu_rates import FLOAT32, INT8, Rates
from lab.bench.harness import Values
from lab.bench.onnx_graphs import GraphFile
from lab.bench.turns import UNTIMED_TURNS

KERNEL: Final = "_kernel_time"
"""Suffix of the names of a profile's events of nodes."""
RUN: Final = "model_run"
SUMMED: Final = frozenset({"Conv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm"})
"""Operators that multiply in float32."""
ROUNDED: Final = frozenset({"MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat"})
"""Operators that multiply in INT8."""
LOOK_UPS: Final = IN_PLACE | {"Gather", "GatherND"}
"""Operators that use little of their first input."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node in the runtime's graph: its name, the shapes of its weights, and the bytes that it reads.

    ``weight_bytes`` are the same for any number of rows, ``state_bytes`` those of the profiled rows.
    """

    name: str
    weights: tuple[tuple[int, ...], ...] = ()
    weight_bytes: int = 0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a node of a stage for one frame of ``rows`` rows."""

    operator: str
    weight_bytes: int
    state_bytes: int
    products: int
    rows: int

    def least_s(self, rows: int, rates: Rates) -> float:
        """Return the minimum seconds of the work for another number of rows."""
        share = rows / self.rows
        products = self.products * share if self.operator in SUMMED | ROUNDED else 0
        kind = INT8 if self.operator in ROUNDED else FLOAT32
        return rates.least_s(self.weight_bytes + self.state_bytes * share, products, kind)


@dataclass(frozen=True, slots=True)
class Profile:
    """Runs of a stage for ``rows`` rows in the runtime's profile: its events, and its nodes by name."""

    events: Sequence[Values]
    nodes: Mapping[str, Node]
    rows: int

    @property
    def runs(self) -> Sequence[Values]:
        """The runs without those at the start, which do not count."""
        return [event for event in self.events if event["name"] == RUN][UNTIMED_TURNS:]

    def kernels_of(self, run: Values) -> Iterator[Values]:
        """Yield the events of nodes within a run."""
        end = run["ts"] + run["dur"]
        for event in self.events:
            if event["name"].endswith(KERNEL) and run["ts"] <= event["ts"] <= end:
                yield event

    def work_of(self, event: Values) -> tuple[str, Work]:
        """Return the name of an event's node, and its work."""
        name = event["name"].removesuffix(KERNEL)
        node = self.nodes.get(name, Node(name))
        made = products(event["args"], node)
        work = Work(event["args"]["op_name"], node.weight_bytes, node.state_bytes, made, self.rows)
        return name, work

    def works(self) -> list[Work]:
        """Return the work of each node of a run."""
        return list(dict(map(self.work_of, self.kernels_of(self.runs[-1]))).values())


def take_profile(
    file: GraphFile, rows: int, threads: int, runs: int, beside: Callable[[], object] = lambda: None
) -> Profile:
    """Run a stage with the runtime's own profiler, and ``beside`` after each run; returns the profile."""
    with tempfile.TemporaryDirectory() as scratch:
        options = session_options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = f"{scratch}/profile"
        options.optimized_model_filepath = f"{scratch}/optimised.onnx"
        session = onnxruntime.InferenceSession(str(file.path), options, providers=["CPUExecutionProvider"])
        seen = file.rows(session, rows)
        run = seen.prepare(range(rows))
        for _ in range(runs + UNTIMED_TURNS):
            run()
            beside()
        events = json.loads(Path(session.end_profiling()).read_text())
        state = {name: array.nbytes for name, array in seen.state.arrays.items()}
        optimised = onnx.load(f"{scratch}/optimised.onnx", load_external_data=False)  # only shapes are needed
        return Profile(events, read_nodes(optimised, state), rows)


def read_nodes(model: onnx.ModelProto, state: Mapping[str, int]) -> dict[str, Node]:
    """Return the nodes of the runtime's optimised graph by name, with the weights and state that they read.

    ``state``: the bytes of each input that is state. A view reads nothing, but a reader of a view reads its
    content; the same applies to a ring that was written in place.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    weights = {tensor.name: _bytes(tensor) for tensor in model.graph.initializer}
    rings = dict(state)
    nodes = {}
    for node in model.graph.node:
        if node.op_type in VIEWS | IN_PLACE:
            for sizes in (weights, rings):
                if node.input[0] in sizes:
                    sizes[node.output[0]] = sizes[node.input[0]]
        read = set(node.input[1:] if node.op_type in VIEWS | LOOK_UPS else node.input)
        nodes[node.name] = Node(
            node.name,
            tuple(shapes[name] for name in node.input if name in shapes),
            sum(weights.get(name, 0) for name in read),
            sum(rings.get(name, 0) for name in read),
        )
    return nodes


def _bytes(tensor: onnx.TensorProto) -> int:
    itemsize: int = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    size: int = math.prod(tensor.dims)
    return size * itemsize


def products(event: Values, node: Node) -> int:
    """Return the number of multiplications of a node, by the shapes of its event; 0 for an operator without
    products."""
    operator, kernel = event["op_name"], next((w for w in node.weights if len(w) > 2), ())
    given, made = (_elements(event[key][0]) for key in ("input_type_shape", "output_type_shape"))
    if operator in ("Conv", "ConvTranspose") and kernel:
        return math.prod(kernel[1:]) * (made if operator == "Conv" else given)
    if operator in ("MatMul", "FusedMatMul", "Gemm", *ROUNDED):
        return made * int(_shape(event["input_type_shape"][0])[-1])
    return 0


def _shape(entry: Mapping[str, Sequence[int]]) -> Sequence[int]:
    return next(iter(entry.values()))


def _elements(entry: Mapping[str, Sequence[int]]) -> int:
    return math.prod(_shape(entry))

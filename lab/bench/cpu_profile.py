"""Where a frame of Mimi goes on a CPU: ONNX Runtime's own profile, by operator, beside torch's rate.

    python -m lab.bench.cpu_profile                           batch 8, INT8, two threads
    python -m lab.bench.cpu_profile --batch 1 --form float32
    python -m lab.bench.cpu_profile --quick                   a small Mimi, to see that it works

The graphs are those of ``lab.bench.cpu_models`` (exported once, into --graphs), opened and bound as the
server does it: state is updated where it lies. Profiling costs time for every node, so a second session
without it runs by turns beside; its time is given too. A node's bytes are the weights and the rings that it
reads, its multiplications those of its shapes; what these take at least is measured first, on as many
threads.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from antiphon.backends.onnx.sessions import session_options
from antiphon_quantize.onnx_aliases import IN_PLACE, VIEWS
from lab.bench.harness import Results, Values, machine_line, tell, warn_if_busy
from lab.bench.onnx_graphs import GraphFile
from lab.bench.onnx_models import RECIPES, Setting
from lab.bench.pages import write_page
from lab.bench.turns import UNTIMED_TURNS, summary

KERNEL = "_kernel_time"
"""What the names of a profile's events of nodes end with."""
RUN = "model_run"
SUMMED = frozenset({"Conv", "ConvTranspose", "MatMul", "FusedMatMul", "Gemm"})
"""Operators that multiply in float32."""
LEAST_SHARE = 0.005
"""Operators of a smaller share are told together."""
LOOK_UPS = IN_PLACE | {"Gather", "GatherND"}
"""Operators that touch little of their first input."""
PROBE_FLOATS = 1 << 26
PROBE_SIDE = 1024
PROBE_TURNS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the runtime runs it: its name, and the bytes it reads that no cache holds between frames."""

    name: str
    weights: tuple[tuple[int, ...], ...]
    cold_bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine reaches: bytes read in a second, and multiplications of float32."""

    bytes_s: float
    products_s: float


def profile_stage(file: GraphFile, rows: int, threads: int, runs: int, rates: Rates) -> Values:
    """A stage's frame by operator, the median of ``runs``."""
    with tempfile.TemporaryDirectory() as scratch:
        options = session_options(threads)
        options.enable_profiling = True
        options.profile_file_prefix = f"{scratch}/profile"
        options.optimized_model_filepath = f"{scratch}/optimised.onnx"
        session = onnxruntime.InferenceSession(str(file.path), options, providers=["CPUExecutionProvider"])
        seen, plain = file.rows(session, rows), file.rows(file.session(threads), rows)
        plain_ms = []
        for _ in range(runs + UNTIMED_TURNS):
            seen.run(range(rows))
            start_s = time.perf_counter()
            plain.run(range(rows))
            plain_ms.append(1000 * (time.perf_counter() - start_s))
        events = json.loads(Path(session.end_profiling()).read_text())
        state = {name: array.nbytes for name, array in seen.state.arrays.items()}
        nodes = read_nodes(onnx.load(f"{scratch}/optimised.onnx"), state)
    found = by_operator(events, nodes, rates)
    return {"unprofiled": summary(plain_ms[UNTIMED_TURNS:]), **found}


def read_nodes(model: onnx.ModelProto, state: Mapping[str, int]) -> dict[str, Node]:
    """The nodes of the graph that the runtime made of ours, by name, and what they read of weights and state.

    ``state``: the bytes of each input that is state. A view reads nothing, but who reads it reads what it
    shows; so it is with a ring that was written in place.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    sizes = {tensor.name: len(tensor.raw_data) for tensor in model.graph.initializer} | dict(state)
    nodes = {}
    for node in model.graph.node:
        if node.op_type in VIEWS | IN_PLACE and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
        read = set(node.input[1:] if node.op_type in VIEWS | LOOK_UPS else node.input)
        weights = tuple(shapes[name] for name in node.input if name in shapes)
        nodes[node.name] = Node(node.name, weights, sum(sizes.get(name, 0) for name in read))
    return nodes


def by_operator(events: Sequence[Values], nodes: Mapping[str, Node], rates: Rates) -> Values:
    """Of the profile's runs but the first: each operator's ms in a run, its bytes, products, torch's ms."""
    runs = [event for event in events if event["name"] == RUN][UNTIMED_TURNS:]
    operators: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for event in _kernels_of(run, events):
            operator = event["args"]["op_name"]
            found = operators.setdefault(operator, {"ms": [0.0] * len(runs), "nodes": {}})
            found["ms"][index] += event["dur"] / 1000
            name = event["name"].removesuffix(KERNEL)
            node = nodes.get(name, Node(name, (), 0))
            found["nodes"][name] = (node.cold_bytes, products(event["args"], node))
    return {
        "run": summary([run["dur"] / 1000 for run in runs]),
        "kernels": summary([sum(o["ms"][index] for o in operators.values()) for index in range(len(runs))]),
        "operators": {name: _summarise(name, found, rates) for name, found in operators.items()},
    }


def _kernels_of(run: Values, events: Sequence[Values]) -> Iterator[Values]:
    end = run["ts"] + run["dur"]
    for event in events:
        if event["name"].endswith(KERNEL) and run["ts"] <= event["ts"] <= end:
            yield event


def _summarise(operator: str, found: Mapping[str, Any], rates: Rates) -> Values:
    pairs = list(found["nodes"].values())
    is_float = operator in SUMMED
    least_s = [max(b / rates.bytes_s, p / rates.products_s if is_float else 0) for b, p in pairs]
    return {
        **summary(found["ms"]),
        "nodes": len(pairs),
        "cold_bytes": sum(pair[0] for pair in pairs),
        "products": sum(pair[1] for pair in pairs),
        "torch_ms": 1000 * sum(least_s),
    }


def products(event: Values, node: Node) -> int:
    """Multiplications of a node, by the shapes that its event tells; 0 for an operator that is no product."""
    operator, kernel = event["op_name"], next((w for w in node.weights if len(w) > 2), ())
    given, made = (_elements(event[key][0]) for key in ("input_type_shape", "output_type_shape"))
    if operator in ("Conv", "ConvTranspose") and kernel:
        return math.prod(kernel[1:]) * (made if operator == "Conv" else given)
    if operator in ("MatMul", "FusedMatMul", "Gemm", "MatMulNBits"):
        return made * int(_shape(event["input_type_shape"][0])[-1])
    return 0


def _shape(entry: Mapping[str, Sequence[int]]) -> Sequence[int]:
    return next(iter(entry.values()))


def _elements(entry: Mapping[str, Sequence[int]]) -> int:
    return math.prod(_shape(entry))


def measure_rates() -> Rates:
    """The best of some sums over a quarter of a gigabyte, and of some products of matrices, by torch."""
    floats, square = torch.ones(PROBE_FLOATS), torch.ones(PROBE_SIDE, PROBE_SIDE)
    return Rates(4 * PROBE_FLOATS / _best_s(floats.sum), PROBE_SIDE**3 / _best_s(lambda: square @ square))


def _best_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(PROBE_TURNS):
        start_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - start_s)
    return min(times)


def render(values: Values) -> str:
    """The results in Markdown."""
    settings, rates = values["settings"], values["attempts"]["rates"]
    about = (
        f"`{values['command']}`, {values['started_at']}. {machine_line(values)}; load average before the run "
        f"{values['machine']['load_average_before'][0]}. {settings['threads']} thread(s) of ONNX Runtime, "
        f"sleeping where they wait; {settings['runs']} runs after {UNTIMED_TURNS} that do not count, each "
        "beside one without a profile. State is updated where it lies, rings are full."
    )
    about_rates = (
        "Medians (lower to upper quartile) of a frame's wall-clock time. MB: weights and rings that an "
        "operator reads; G: multiplications. Beside them what these take at "
        f"{rates['bytes_s'] / 1e9:.1f} GB/s and, in float32, {rates['products_s'] / 1e9:.0f} G/s, the best "
        "that torch reached on as many threads: a yardstick and no bound, since ONNX Runtime's own products "
        "may be faster. Operators that read nothing but what the one before them wrote have none."
    )
    parts = ["# A frame of Mimi by operator", about, about_rates]
    parts += [_section(key, found, settings) for key, found in values["attempts"].items() if key != "rates"]
    return "\n\n".join(parts) + "\n"


def _section(stage: str, found: Values, settings: Values) -> str:
    total_ms = sum(operator["median_ms"] for operator in found["operators"].values())
    ordered = sorted(found["operators"].items(), key=lambda item: -item[1]["median_ms"])
    told = [item for item in ordered if item[1]["median_ms"] >= LEAST_SHARE * total_ms]
    lines = [_line(name, operator, total_ms) for name, operator in told]
    if rest := ordered[len(told) :]:
        ms = sum(operator["median_ms"] for _, operator in rest)
        count = sum(operator["nodes"] for _, operator in rest)
        lines.append(f"| {len(rest)} others | {count} | {ms / total_ms:.1%} | {ms:.2f} | | | |")
    times = (
        f"A run takes {_spread(found['unprofiled'])} ms without a profile, {_spread(found['run'])} ms with "
        f"one, of which kernels {_spread(found['kernels'])} ms."
    )
    head = "| operator | nodes | share | ms a frame | MB | G | at that rate, ms |\n" + "|---" * 7 + "|"
    title = f"## {stage.capitalize()}, batch {settings['batch']}, {settings['form']}"
    return "\n\n".join([title, times, "\n".join([head, *lines])])


def _line(name: str, found: Values, total_ms: float) -> str:
    torch_ms = f"{found['torch_ms']:.2f}" if found["torch_ms"] >= 0.005 else ""
    return (
        f"| {name} | {found['nodes']} | {found['median_ms'] / total_ms:.1%} | {_spread(found)} | "
        f"{_some(found['cold_bytes'] / 1e6)} | {_some(found['products'] / 1e9)} | {torch_ms} |"
    )


def _some(number: float) -> str:
    return f"{number:.2f}" if number >= 0.005 else ""


def _spread(found: Values) -> str:
    low, high = found["quartiles_ms"]
    return f"{found['median_ms']:.2f} ({low:.2f} to {high:.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    options = _parse(argv)
    settings = {
        "batch": options.batch,
        "form": options.form,
        "threads": options.threads,
        "runs": options.runs,
    }
    results = Results(options.out / "cpu-profile.json", settings=settings, resume=False)
    warn_if_busy()
    setting = Setting(options.graphs, options.size, options.threads, spin=False, turns=0)
    folder, before = setting.folder("mimi"), torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        rates = measure_rates()
    finally:
        torch.set_num_threads(before)
    results.attempt("rates", lambda: {"bytes_s": rates.bytes_s, "products_s": rates.products_s})
    for stage in ("encode", "decode"):
        tell(stage)
        file = GraphFile(folder, options.form, stage)
        found = profile_stage(file, options.batch, options.threads, options.runs, rates)
        results.values["attempts"][stage] = found
    results.save()
    print(write_page(options.out / "cpu-profile.md", render(results.values)), end="")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.cpu_profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--batch", type=int, default=8, help="[%(default)s]")
    parser.add_argument("--form", choices=RECIPES, default="int8", help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--runs", type=int, help="[60]")
    parser.add_argument("--graphs", type=Path, default=Path("out/bench/graphs"), help="[%(default)s]")
    parser.add_argument("--quick", action="store_true", help="a small Mimi, a few runs")
    options = parser.parse_args(argv)
    options.size = "small" if options.quick else "full"
    options.runs = options.runs or (3 if options.quick else 60)
    return options


if __name__ == "__main__":
    sys.exit(main())

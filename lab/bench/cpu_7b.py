"""Moshi 7B on a CPU: a frame's step in INT4 and INT8, on ONNX Runtime and on torch, beside its floor.

    python -m lab.bench.cpu_7b --threads 2                    all four forms; 9 GB of disk, 12 of memory
    python -m lab.bench.cpu_7b --threads 32 --form "onnx int4" --rows 1 --rows 4       one form, on a server
    python -m lab.bench.cpu_7b --layers 4 --depformer-layers 1  less of it
    python -m lab.bench.cpu_7b --write int4                graphs of a form, to be timed later
    python -m lab.bench.cpu_7b --quick                        a small one, in seconds, to see that it works

Weights are seeded and of the published shapes, rings are full. Each weight is drawn and rounded before the
next one, so the model is nowhere in more than its own bits. Writing graphs and stepping are processes of
their own, whose peak is what the system says when they end. Forms that were measured are not measured again.
Graphs are deleted once they are timed, and when the run is stopped, unless --keep is given; --write and its
run take the same --graphs, --layers and --context. On a busy machine --threads 1 counts the thread's own CPU
time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import torch
from torch import Tensor

from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.state import State
from antiphon.models import defaults
from lab.bench import cpu_7b_report
from lab.bench.cpu_rates import measure_rates
from lab.bench.frame_work import KEEPINGS
from lab.bench.gpu_models import SHRUNK
from lab.bench.harness import Results, Values, tell, terminable, warn_if_busy
from lab.bench.onnx_graphs import GraphFile
from lab.bench.pages import write_page
from lab.bench.quantize_7b import measured
from lab.bench.seeded_graphs import write_graphs
from lab.bench.seeded_linears import seeded_lm
from lab.bench.turns import Call, clock_name, take_turns

TURNS, FEW_TURNS = 15, 2
SMALL_PROBE = {"floats": 1 << 20, "side": 128}

Model: TypeAlias = Callable[[int], tuple[dict[str, Call], int]]
"""From a number of rows to a call of each stage, and the bytes of their state."""


def step_form(form: str, options: argparse.Namespace) -> Values:
    """Load a form into this process and step it: seconds, bytes, and milliseconds by stage and rows."""
    tell("measuring memory and products")
    rates = measure_rates(options.threads, **(SMALL_PROBE if options.quick else {}))
    tell(f"{rates}; loading")
    before_bytes, began_s = _resident_bytes(), time.monotonic()
    backend, name = form.split()
    config = config_of(options)
    model = (
        open_graphs(options.graphs / name, name, options.threads)
        if backend == "onnx"
        else open_torch(config, 4 if name == "int4" else 8)
    )
    load_s, weights_bytes = time.monotonic() - began_s, _resident_bytes() - before_bytes
    times, state_bytes = {}, 0
    for rows in options.rows:
        tell(f"loaded in {load_s:.0f} s; timing {rows} row(s)")
        with torch.no_grad():
            calls, state_bytes = model(rows)
            times[str(rows)] = take_turns(calls, FEW_TURNS if options.quick else TURNS)
            del calls
    return {
        "rates": rates.to_json(),
        "load_s": load_s,
        "weights_bytes": weights_bytes,
        "state_bytes": state_bytes / options.rows[-1],
        "times": times,
    }


def open_graphs(folder: Path, recipe: str, threads: int) -> Model:
    """Graphs that were written before."""
    files = {path.stem: GraphFile.exported(folder, recipe, path.stem) for path in folder.glob("*/*.json")}
    sessions = {stage: file.session(threads) for stage, file in files.items()}

    def run(rows: int) -> tuple[dict[str, Call], int]:
        graphs = {stage: file.rows(sessions[stage], rows) for stage, file in files.items()}
        calls: dict[str, Call] = {stage: partial(graph.run, range(rows)) for stage, graph in graphs.items()}
        return calls, sum(graph.bytes for graph in graphs.values())

    return run


def open_torch(config: Mapping[str, Any], bits: int) -> Model:
    """Modules as the torch backend has them on a CPU."""
    model = seeded_lm(config, bits, Compute(torch.bfloat16, torch.float32))

    def run(rows: int) -> tuple[dict[str, Call], int]:
        state = State(model.specs(), rows)
        for tensor in state.tensors.values():
            tensor.fill_(0.01 if tensor.is_floating_point() else config["context"])
        tokens = torch.ones(rows, 1 + config["n_q"], 1, dtype=torch.int64)
        hidden, text = torch.ones(rows, 1, config["dim"], dtype=model.dtype), tokens[:, 0, 0]
        calls: dict[str, Call] = {"lm": lambda: model(tokens, state.step())}
        if (depformer := model.depformer) is not None:
            calls["depformer"] = lambda: depformer(hidden, text, _likeliest)
        return calls, sum(tensor.nbytes for tensor in state.tensors.values())

    return run


def _likeliest(codebook: int, logits: Tensor) -> Tensor:  # noqa: ARG001
    return logits.argmax(dim=-1)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """The published configuration, or as much of it as was asked for."""
    config = {**defaults.MOSHI_CONFIG, **(SHRUNK if options.quick else {})}
    for key, wanted in (
        ("num_layers", options.layers),
        ("depformer_num_layers", options.depformer_layers),
        ("context", options.context),
    ):
        config[key] = wanted or config[key]
    return config


def measure_form(form: str, options: argparse.Namespace, line: Sequence[str]) -> Values:
    """Write what the form needs, step it, and delete it again, each in a process of its own."""
    backend, name = form.split()
    own = [sys.executable, "-m", "lab.bench.cpu_7b", *line]
    folder, made, file_bytes = options.graphs / name, {}, 0
    if backend == "onnx":
        if not folder.is_dir():
            made = {"made": measured([*own, "--write", name])}
        file_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    try:
        stepped = measured([*own, "--step", form])
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return {
        **made,
        **json.loads(stepped["said"]),
        "peak_bytes": stepped["peak_bytes"],
        "file_bytes": file_bytes,
    }


def write_form(recipe: str, options: argparse.Namespace) -> None:
    """Write the graphs of a recipe, whole or not at all."""
    part, folder = options.graphs / f"{recipe}.part", options.graphs / recipe
    try:
        write_graphs(part, config_of(options), recipe)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(argv: Sequence[str]) -> int:
    """The command line. Returns the exit status."""
    options = _parse(argv)
    if options.write:
        write_form(options.write, options)
        return 0
    if options.step:
        torch.set_num_threads(options.threads)
        print(json.dumps(step_form(options.step, options)))
        return 0
    warn_if_busy()
    clock = clock_name(options.threads)
    settings = {
        "threads": options.threads,
        "clock": clock,
        "rows": options.rows,
        "config": config_of(options),
    }
    results = Results(options.out / "cpu-7b.json", settings=settings, resume=True)
    for form in options.form:
        tell(form)
        results.attempt(form, partial(measure_form, form, options, list(_line(options))))
    print(write_page(options.out / "cpu-7b.md", cpu_7b_report.render(results.values)), end="")
    return 0


def _line(options: argparse.Namespace) -> Iterator[str]:
    """The options that a process of this run needs."""
    yield from ("--threads", str(options.threads), "--graphs", str(options.graphs))
    yield from (word for rows in options.rows for word in ("--rows", str(rows)))
    for name in ("layers", "depformer_layers", "context"):
        if (wanted := getattr(options, name)) is not None:
            yield from (f"--{name.replace('_', '-')}", str(wanted))
    if options.quick:
        yield "--quick"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.bench.cpu_7b", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="where results go [%(default)s]")
    parser.add_argument("--graphs", type=Path, default=Path("out/bench/7b"), help="[%(default)s]")
    parser.add_argument("--form", choices=list(KEEPINGS), action="append", help="[all]")
    parser.add_argument("--rows", type=int, action="append", help="[1]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--layers", type=int, help="of the temporal transformer [32]")
    parser.add_argument("--depformer-layers", type=int, help="[6]")
    parser.add_argument("--context", type=int, help="frames of a ring [3000]")
    parser.add_argument("--keep", action="store_true", help="leave the graphs for another run")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--write", choices=("int4", "int8"), help="write graphs for another run, and end")
    parser.add_argument("--step", choices=list(KEEPINGS), help=argparse.SUPPRESS)
    options = parser.parse_args(list(argv))
    options.form, options.rows = options.form or list(KEEPINGS), sorted(options.rows or [1])
    return options


if __name__ == "__main__":
    with terminable("cpu_7b"):
        sys.exit(main(sys.argv[1:]))

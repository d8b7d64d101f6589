"""Measures the memory of a model, each form in a fresh process, for ``lab.bench.cpu_models --only memory``.

    python -m lab.bench.model_memory out/bench/graphs/mimi-full int8 8 2      one form, as JSON

The process imports its modules, loads the weights, allocates rows of state and steps them, and reports its
growth after each; its peak is the system's. For the form ``upstream`` the model is upstream's; torch is
imported only there.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import run
from typing import TypeAlias

import psutil

from lab.bench.harness import BenchError, Values
from lab.bench.onnx_graphs import GraphFile

UPSTREAM = "upstream"
EAGER: Mapping[str, str] = {"NO_TORCH_COMPILE": "1"}
"""Options for upstream: a compiler would need more memory than the compiled code."""
STEPS = 5
"""Number of steps after which all state between steps is allocated."""

Steps: TypeAlias = tuple[Sequence[Callable[[], object]], int]
"""A step of every stage, and the bytes of its state."""


def measure_memory(folder: Path, form: str, rows: int, threads: int) -> Values:
    """Measure the bytes of a form of the model that ``folder`` is named after, in a separate process.

    ``weights_bytes`` and ``running_bytes``: its growth while loading, and while stepping rows.
    ``state_bytes``: the rows' state between steps. ``peak_bytes``: the most memory above that before loading.

    Raises:
        BenchError: it failed; with the end of its output.
    """
    command = [sys.executable, "-m", "lab.bench.model_memory", str(folder), form, str(rows), str(threads)]
    done = run(command, capture_output=True, text=True, check=False, env={**os.environ, **EAGER})
    if done.returncode:
        raise BenchError(f"{form} of {folder.name}, {rows} rows: {done.stderr.strip()[-500:]}")
    found: Values = json.loads(done.stdout)
    return found


def main(argv: Sequence[str]) -> int:
    """Measure the memory that a model in one form needs in this process, and print the bytes as JSON."""
    folder, form, rows, threads = argv
    make = _upstream if form == UPSTREAM else _graphs
    print(json.dumps(_grow(make(Path(folder), form, int(rows), int(threads)))))
    return 0


def _grow(stages: Iterator[Steps]) -> Values:
    """``stages`` has imported after its first step, loaded after its second, and has rows after its third."""
    next(stages)
    before_bytes = _resident_bytes()
    next(stages)
    loaded_bytes = _resident_bytes()
    steps, state_bytes = next(stages)
    for _ in range(STEPS):
        for step in steps:
            step()
    running_bytes = _resident_bytes()
    return {
        "weights_bytes": loaded_bytes - before_bytes,
        "running_bytes": running_bytes - loaded_bytes,
        "state_bytes": state_bytes,
        "peak_bytes": _peak_bytes() - before_bytes,
    }


NOTHING: Steps = ((), 0)


def _graphs(folder: Path, form: str, rows: int, threads: int) -> Iterator[Steps]:
    files = [GraphFile.exported(folder, form, path.stem) for path in sorted((folder / form).glob("*.json"))]
    yield NOTHING
    sessions = [file.session(threads) for file in files]
    yield NOTHING
    graphs = [file.rows(session, rows) for file, session in zip(files, sessions, strict=True)]
    yield [graph.prepare(range(rows)) for graph in graphs], sum(graph.bytes for graph in graphs)


def _upstream(folder: Path, form: str, rows: int, threads: int) -> Iterator[Steps]:  # noqa: ARG001
    import torch

    from lab.bench.seeded_models import MODELS, upstream_calls, upstream_model

    torch.set_num_threads(threads)
    seeded = MODELS[folder.name]
    yield NOTHING
    with torch.no_grad(), ExitStack() as stack:
        model = upstream_model(seeded)
        yield NOTHING
        before_bytes = _tensor_bytes()
        calls = upstream_calls(model, seeded.stages, rows, stack)
        yield list(calls.values()), _tensor_bytes() - before_bytes


def _tensor_bytes() -> int:
    """Bytes of all existing tensors, each storage once."""
    import torch

    tensors = [found for found in gc.get_objects() if isinstance(found, torch.Tensor)]
    storages = {found.untyped_storage().data_ptr(): found.untyped_storage().nbytes() for found in tensors}
    return sum(storages.values())


def _resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def _peak_bytes() -> int:
    """The most memory of this process, as Linux reports it: from the program's start, unlike getrusage."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise BenchError("the system does not say how much a process held at most")


def render(attempts: Mapping[str, Values]) -> str:
    """Return a section in Markdown of the attempts called ``memory MODEL FORM ROWS``; empty if there are
    none."""
    rows = [_row(key, found) for key, found in attempts.items() if key.startswith("memory ")]
    if not rows:
        return ""
    about = (
        "What a fresh process grew by, a process for each line, in MB: when weights were loaded; when rows "
        f"had run {STEPS} steps, next to the bytes of their state (no larger when a ring is full), and less "
        "than those where memory that loading had freed was used again; and at its peak. Upstream's Mimi is "
        "float32, its stt-1b bfloat16, and neither is compiled."
    )
    head = "| | batch | form | weights | rows | their state | at the peak |\n|---|---|---|---|---|---|---|"
    return "\n\n".join(["## Memory", about, "\n".join([head, *rows])])


def _row(key: str, found: Values) -> str:
    _, model, form, batch = key.split()
    name = "stt-1b step" if model == "lm" else "Mimi encode + decode"
    sizes = (found[f"{what}_bytes"] for what in ("weights", "running", "state", "peak"))
    return f"| {name} | {batch} | {form} | {' | '.join(f'{size / 1e6:.0f}' for size in sizes)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs graphs on given inputs, on any processor; torch is not imported.

    python -m lab.tools.graph_answers GIVEN.npz GRAPHS.json ANSWERS.npz

``GRAPHS.json``: by name, each graph's path and entry of the graph table. ``GIVEN.npz``: ``NAME/INPUT``, an
array ``[frames, rows, ...]`` for each input that is no state. The output has ``NAME/OUTPUT`` in the same
form.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import open_session, pick_provider
from antiphon.models.manifest import Array, GraphFormat, graph_from_json


def answers(path: Path, form: GraphFormat, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return each output of a graph for every frame of ``given``, starting with reset rows."""
    frames, rows = next(iter(given.values())).shape[:2]
    graph = Graph(open_session(path, pick_provider("cpu")[1], 1), form, rows)
    found: dict[str, list[Array]] = {name: [] for name in graph.outputs}
    for frame in range(frames):
        for name, array in graph.inputs.items():
            array[:] = given[name][frame]
        graph.prepare(range(rows))()
        for name, array in graph.outputs.items():
            found[name].append(array.copy())
    return {name: np.stack(arrays) for name, arrays in found.items()}


def main(given_path: str, graphs_path: str, answers_path: str) -> None:
    """Run every graph, and write all outputs."""
    given = np.load(given_path)
    told: dict[str, Any] = {}
    for name, entry in json.loads(Path(graphs_path).read_text()).items():
        form = graph_from_json(entry["form"], name)
        own = {key.removeprefix(f"{name}/"): given[key] for key in given.files if key.startswith(f"{name}/")}
        found = answers(Path(entry["path"]), form, own)
        told |= {f"{name}/{output}": array for output, array in found.items()}
    np.savez(answers_path, **told)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Opens an exported graph of ``lab.bench.onnx_models`` with all rows in the state of long calls.

It does not import torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.sessions import SplitSession, open_session, pick_provider
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import GraphFormat, graph_from_json

Session: TypeAlias = Any
"""An onnxruntime.InferenceSession, which has no type annotations."""

LONG_AGO = 100_003
"""A position after every ring's wrap."""
SOMETHING = 0.01
"""Content of the rows' state."""


@dataclass(frozen=True, slots=True)
class GraphFile:
    """The graph of a stage of a model, and its entry of the graph table."""

    path: Path
    form: GraphFormat

    @classmethod
    def exported(cls, folder: Path, recipe: str, stage: str) -> GraphFile:
        """Return a stage's graph by a recipe: ``folder/RECIPE/STAGE.onnx``, with its table next to it."""
        path = folder / recipe / f"{stage}.onnx"
        return cls(path, graph_from_json(json.loads(path.with_suffix(".json").read_text()), stage))

    @classmethod
    def shipped(cls, checkpoint: Checkpoint, stage: str) -> GraphFile:
        """Return the graph of a stage of a checkpoint that has graphs."""
        form = checkpoint.graphs[stage]
        return cls(checkpoint.file(form.file), form)

    @property
    def bytes(self) -> int:
        """The bytes of the graph on disk, including a separate data file."""
        return sum(path.stat().st_size for path in self.path.parent.glob(f"{self.path.name}*"))

    def session(self, threads: int, *, spin: bool = False) -> Session:
        """Open the graph as the server does, on the CPU."""
        return open_session(self.path, pick_provider("cpu")[1], threads, spin=spin)

    def rows(self, session: Session, rows: int, split: SplitSession | None = None) -> Graph:
        """Return the graph in ``session`` with ``rows`` rows, all advancing and in the state of long calls.

        Rings are overwritten, so that they are memory and not the system's shared page of zeros.
        """
        graph = Graph(session, self.form, rows, split)
        fill_rows(graph)
        return graph


def fill_rows(graph: Graph) -> None:
    """Make all rows advance, and give them the state of long calls."""
    for array in graph.inputs.values():
        array[:] = 1
    for name, array in graph.state.arrays.items():
        array[:] = LONG_AGO if name.endswith("position") else True if array.dtype == bool else SOMETHING

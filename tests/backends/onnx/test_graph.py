"""One graph: bindings, tensors that are never copied, and invalid graphs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from antiphon.backends.onnx import graph as module
from antiphon.backends.onnx.graph import Graph
from antiphon.backends.onnx.loading import make
from antiphon.backends.onnx.sessions import onnxruntime, open_session, pick_provider
from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.manifest import MANIFEST_NAME
from antiphon.models.onnx_file import read_opset
from tests.backends.onnx.exports import exported

ROWS = 5


@pytest.fixture(scope="module")
def duplex() -> Checkpoint:
    return exported("moshi")


class Noting:
    """A session that notes what was bound, and which binding ran last."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session, self.bound = session, 0
        self.last: onnxruntime.IOBinding | None = None

    def io_binding(self) -> onnxruntime.IOBinding:
        self.bound += 1
        return self.session.io_binding()

    def run_with_iobinding(self, binding: onnxruntime.IOBinding) -> None:
        self.last = binding
        self.session.run_with_iobinding(binding)


def graph_of(checkpoint: Checkpoint, name: str) -> tuple[Graph, Noting]:
    form = checkpoint.graphs[name]
    _, providers = pick_provider(None)
    session = Noting(open_session(checkpoint.file(form.file), providers, 1))
    return Graph(cast("onnxruntime.InferenceSession", session), form, ROWS), session


@pytest.mark.parametrize("name", ["encode", "lm", "decode"])
def test_rings_are_written_where_they_lie(duplex: Checkpoint, name: str) -> None:
    """By address: the memory a tick gives as a ring's next value is the memory it read the ring from."""
    form, (graph, session) = duplex.graphs[name], graph_of(duplex, name)
    aliased = {entry.name: entry for entry in form.state if entry.aliased}
    rings = {name for name in graph.state.arrays if name.endswith((".k", ".v"))}
    assert rings <= aliased.keys()
    assert not any(name.endswith((".position", ".started")) for name in aliased)
    graph.inputs["exec"][:] = True
    addresses = {name: array.ctypes.data for name, array in graph.state.arrays.items()}
    for window in (range(2), range(2), range(3, 4), range(2, 4)):
        graph.prepare(window)()
        assert session.last is not None
        outputs = session.last.get_outputs()
        written = {tensor.name: value for tensor, value in zip(form.outputs, outputs, strict=True)}
        for ring, entry in aliased.items():
            assert entry.output is not None
            before = window.start * graph.state.arrays[ring].strides[0]
            assert written[entry.output].data_ptr() == addresses[ring] + before
    for ring in rings:
        ring_rows = np.abs(graph.state.arrays[ring]).reshape(ROWS, -1).sum(axis=1)
        assert (ring_rows[:4] > 0).all()
        assert (ring_rows[4:] == 0).all()


def test_few_windows_stay_bound(duplex: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BINDINGS", 2)
    graph, session = graph_of(duplex, "encode")
    bound = []
    for window in (range(1), range(1, 3), range(1), range(4, 5), range(1), range(1, 3)):
        graph.prepare(window)()
        bound.append(session.bound)
    assert bound == [1, 2, 2, 3, 3, 4]


def test_large_state_is_aliased_and_little_is_put_aside(duplex: Checkpoint) -> None:
    for name in ("encode", "lm", "decode"):
        form = duplex.graphs[name]
        size = {entry.aliased: 0 for entry in form.state}
        for entry in form.state:
            size[entry.aliased] += form.input(entry.name).row_bytes
        if name == "lm":
            assert size[False] == 8  # the position
        assert size[True] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opset": 17}, r"encode.onnx has opset 20, the manifest says 17"),
        ({"inputs.0.shape": [960]}, r"input pcm is float32 \[rows, 1920\], .* float32 \[rows, 960\]"),
        ({"inputs.0.dtype": "float16"}, r"input pcm is float32 \[rows, 1920\], .* float16 \[rows, 1920\]"),
        ({"inputs.0.name": "sound"}, r"input pcm is float32 \[rows, 1920\], .* nothing of it"),
        ({"outputs.0.name": "tokens"}, r"output codes is int64 \[rows, 8\], .* nothing of it"),
        ({"outputs.0.shape": [4]}, r"output codes is int64 \[rows, 8\], .* int64 \[rows, 4\]"),
    ],
)
def test_a_graph_that_is_not_what_the_manifest_says_is_refused(
    duplex: Checkpoint, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(duplex.root, folder)
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    for path, value in change.items():
        *parts, last = path.split(".")
        place = manifest["graphs"]["encode"]
        for part in parts:
            place = place[int(part)] if part.isdecimal() else place[part]
        place[last] = value
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointFormatError, match=message):
        make(load_checkpoint(str(folder)), slots=1, threads=1)


def test_a_missing_graph_and_a_file_that_is_none_are_said(duplex: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(duplex.root, folder)
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    del manifest["graphs"]["lm"]
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointFormatError, match="has no graph 'lm', it has encode, depformer, decode"):
        make(load_checkpoint(str(folder)), slots=1, threads=1)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\x0a\x03abc")
    _, providers = pick_provider("cpu")
    with pytest.raises(CheckpointFormatError, match=r"broken.onnx cannot be run by onnxruntime \d"):
        open_session(broken, providers, 1)
    with pytest.raises(CheckpointFormatError, match=r"broken.onnx is no ONNX graph: it names no opset"):
        read_opset(broken)


@pytest.mark.parametrize("device", ["abacus", "cpu:1", "cuda:x", "coreml:0"])
def test_a_device_nobody_knows_is_said(device: str) -> None:
    with pytest.raises(ConfigError, match=f"no device is called '{device}'; there are: cpu, cuda, cuda:N"):
        pick_provider(device)


@pytest.mark.parametrize(("device", "provider"), [("cuda:1", "CUDA"), ("coreml", "CoreML")])
def test_a_device_is_asked_for_by_its_provider(
    monkeypatch: pytest.MonkeyPatch, device: str, provider: str
) -> None:
    name = f"{provider}ExecutionProvider"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ConfigError, match=rf"device {device} was requested, but this onnxruntime .* has CPU"):
        pick_provider(device)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [name, "CPUExecutionProvider"])
    options = {"device_id": "1"} if provider == "CUDA" else {}
    assert pick_provider(device) == (device, [(name, options), ("CPUExecutionProvider", {})])

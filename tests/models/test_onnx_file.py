"""The opset of an ONNX file, read without the onnx library."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from antiphon.errors import CheckpointFormatError
from antiphon.models.onnx_file import read_opset


@pytest.mark.parametrize(
    "opsets", [{"": 20}, {"com.microsoft": 1, "": 21}, {"ai.onnx": 300}, {"": 18, "x": 2}]
)
def test_the_opset_is_that_of_onnx_itself(tmp_path: Path, opsets: dict[str, int]) -> None:
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g" * 200, [], [])
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports), path)
    assert read_opset(path) == opsets.get("", opsets.get("ai.onnx"))


@pytest.mark.parametrize("content", [b"", b"\x0a", b"\x42", b"\x0b", b"\xff" * 40, b"{}", b"B\x02\x10\x80"])
def test_anything_else_is_said_to_be_no_graph(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    with pytest.raises(CheckpointFormatError, match="is no ONNX graph"):
        read_opset(path)


@pytest.mark.parametrize(
    ("content", "length", "limit"),
    [(b"\x42\xff\xff\xff\xff\x0f", 2**32 - 1, 4096), (b"\x3a" + b"\xff" * 9 + b"\x01", 2**64 - 1, 2**31)],
)
def test_a_stated_length_takes_no_memory(tmp_path: Path, content: bytes, length: int, limit: int) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    sentence = f"is no ONNX graph: it states a field of {length} bytes, the limit is {limit}"
    with pytest.raises(CheckpointFormatError, match=sentence):
        read_opset(path)

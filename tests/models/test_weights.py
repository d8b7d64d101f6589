"""Headers of safetensors files, read without their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file

from antiphon.errors import CheckpointFormatError
from antiphon.models.weights import TensorInfo, count_modules, count_parameters, read_header

TENSORS: dict[str, NDArray[Any]] = {
    "emb.0.weight": np.zeros((3, 4), np.float32),
    "emb.1.weight": np.zeros((5,), np.int8),
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path


def test_header_has_names_types_and_shapes(weights: Path) -> None:
    header = read_header(weights)
    assert header == {"emb.0.weight": TensorInfo("F32", (3, 4)), "emb.1.weight": TensorInfo("I8", (5,))}
    assert header["emb.0.weight"].is_floating
    assert not header["emb.1.weight"].is_floating


def test_file_that_broke_off_is_told_apart(weights: Path) -> None:
    content = weights.read_bytes()
    weights.write_bytes(content[:-2])
    with pytest.raises(
        CheckpointFormatError, match=rf"has {len(content) - 2} bytes, its header says {len(content)}"
    ):
        read_header(weights)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        b"\xff" * 8,
        b"\x10" + b"\0" * 7 + b"{}",
        b"\x02" + b"\0" * 7 + b"[]",
        b"\x02" + b"\0" * 7 + b"\xff\xff",
        (8).to_bytes(8, "little") + b'{"a": 1}',
        (20).to_bytes(8, "little") + b'{"a": {"dtype": "x"}}'[:20],
    ],
    ids=["empty", "short", "huge header", "header beyond the end", "a list", "no text", "no entry", "cut"],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointFormatError, match="is not a safetensors file"):
        read_header(path)


@given(content=st.binary(max_size=64), length=st.integers(0, 70))
def test_random_bytes_are_refused_in_our_own_words(
    content: bytes, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume(content[:length].strip() != b"{}")  # that would be a file with no tensors
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + content)
    with pytest.raises(CheckpointFormatError, match=r"safetensors|its header says"):
        read_header(path)


@pytest.mark.parametrize("size", ["x", -1, 1.0, float("inf")])
def test_impossible_entry_is_refused(size: object, tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointFormatError, match="is not a safetensors file"):
        read_header(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFormatError, match=r"absent\.safetensors cannot be read"):
        read_header(tmp_path / "absent.safetensors")


def test_usage_counts_are_no_parameters() -> None:
    names = ("embedding_sum", "_initialized", "cluster_usage", "inited", "cluster_size", "embed_sum")
    header = {f"quantizer.vq.layers.0._codebook.{name}": TensorInfo("F32", (10,)) for name in names}
    assert count_parameters(header) == 20


def test_modules_are_counted_by_their_numbers() -> None:
    names = (
        "emb.0.weight",
        "emb.1.weight",
        "emb.1.scale",
        "emb.10.weight",
        "emb.norm",
        "demb.3.weight",
        "emb",
    )
    header = {name: TensorInfo("F32", (1,)) for name in names}
    assert count_modules(header, "emb") == 3

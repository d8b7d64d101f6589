"""Language models from GGUF files: published or moshi-core's names, any ggml quantization."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from antiphon.errors import CheckpointFormatError, MissingExtraError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.manifest import sha256
from antiphon_quantize import gguf_source
from antiphon_quantize.gguf_source import convert, sources_of
from antiphon_quantize.main import main
from tests.support.make_checkpoint import make_checkpoint

Q8 = gguf.GGMLQuantizationType.Q8_0
Q4_K = gguf.GGMLQuantizationType.Q4_K
F16 = gguf.GGMLQuantizationType.F16
STEPS = 8


def quiet(done: int, total: int, what: str) -> None:
    """Say nothing."""


def written(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A GGUF file as ggml's tools make them: matrices in Q8_0 where blocks of 32 fit, the others float16."""
    writer = gguf.GGUFWriter(path, "moshi")
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        kind = Q8 if values.ndim == 2 and values.shape[1] % 32 == 0 else F16
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def in_slices(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A published model's tensors under moshi-core's names: a slice for each step of the depformer."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if matched := re.match(r"depformer_in\.(\d)\.weight", name):
            found[f"depformer.{matched[1]}.linear_in.weight"] = tensor
        elif matched := re.match(r"linears\.(\d)\.weight", name):
            found[f"depformer.{matched[1]}.linear_out.weight"] = tensor
        elif name == "depformer_text_emb.weight":
            found["depformer.0.emb.weight"] = tensor
        elif matched := re.match(r"depformer_emb\.(\d)\.weight", name):
            found[f"depformer.{int(matched[1]) + 1}.emb.weight"] = tensor
        elif matched := re.match(r"depformer\.(layers\.\d\.gating)\.(\d)\.(.*)", name):
            found[f"depformer.{matched[2]}.transformer.{matched[1]}.{matched[3]}"] = tensor
        elif name.startswith("depformer.") and "self_attn" in name:
            rest = name.removeprefix("depformer.")
            for step, part in enumerate(tensor.chunk(STEPS)):
                found[f"depformer.{step}.transformer.{rest}"] = part
        elif name.startswith("depformer."):
            rest = name.removeprefix("depformer.")
            found |= {f"depformer.{step}.transformer.{rest}": tensor for step in range(STEPS)}
        else:
            found[name] = tensor
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("gguf") / "source")


@pytest.mark.parametrize("sliced", [False, True], ids=["published names", "moshi-core's names"])
def test_every_tensor_comes_back_to_its_place(source: Path, tmp_path: Path, sliced: bool) -> None:
    tensors = load_file(source / "model.safetensors")
    file = written(tmp_path / "model.q8.gguf", in_slices(tensors) if sliced else tensors)
    convert(file, tmp_path / "back.safetensors", quiet)
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].shape == tensor.shape, name
        assert back[name].dtype == torch.bfloat16
        one, other = tensor.double(), back[name].double()
        assert (one - other).norm() <= 0.01 * one.norm(), name


def test_a_model_is_made_of_its_file_and_another_models_codec(source: Path, tmp_path: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    file = written(tmp_path / "model.q8.gguf", in_slices({name: 2 * tensors[name] for name in tensors}))
    line = ["--no-gate", "--gguf", str(file), "--model", str(source), str(tmp_path / "out")]
    assert main(line) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.q8.gguf", "out"]
    found = load_checkpoint(str(tmp_path / "out"))
    made = load_file(found.file("lm"))
    name = "transformer.layers.0.self_attn.in_proj_weight"
    back = made[name].float() * made[f"{name}_scale"]
    assert torch.allclose(back, 2 * tensors[name].float(), atol=0.05 * float(tensors[name].abs().max()))
    assert found.manifest is not None
    assert found.manifest.quantization is not None
    assert found.manifest.quantization.options["gguf"] == {"name": file.name, "sha256": sha256(file)}
    assert found.file("mimi").read_bytes() == (source / "mimi.safetensors").read_bytes()


def packed_q4_k(scales: NDArray[np.uint8], lows: NDArray[np.uint8], values: NDArray[np.uint8]) -> bytes:
    """256 values of 4 bits, in 8 parts with 6-bit scales and minima: ``block_q4_K`` of ggml."""
    head = np.array([0.5, 0.25], np.float16).tobytes()
    middle = np.zeros(12, np.uint8)
    middle[:4] = scales[:4] | (scales[4:] >> 4 << 6)
    middle[4:8] = lows[:4] | (lows[4:] >> 4 << 6)
    middle[8:] = (scales[4:] & 15) | ((lows[4:] & 15) << 4)
    pairs = values.reshape(4, 2, 32)
    return head + middle.tobytes() + (pairs[:, 0] | (pairs[:, 1] << 4)).tobytes()


def test_four_bits_with_scales_and_minima_are_read_as_they_are_packed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows, wanted = [], []
    for _ in range(3):
        scales, lows = (random.integers(0, 64, 8, np.uint8) for _ in range(2))
        values = random.integers(0, 16, 256, np.uint8)
        rows.append(np.frombuffer(packed_q4_k(scales, lows, values), np.uint8))
        parts = values.reshape(8, 32).astype(np.float64)
        wanted.append((0.5 * scales[:, None] * parts - 0.25 * lows[:, None]).reshape(256))
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "moshi")
    writer.add_tensor("text_linear.weight", np.stack(rows), raw_dtype=Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert(tmp_path / "k.gguf", tmp_path / "k.safetensors", quiet)
    found = load_file(tmp_path / "k.safetensors")["text_linear.weight"]
    assert found.shape == (3, 256)
    assert np.allclose(found.double(), np.stack(wanted), rtol=2**-8, atol=0)


def test_what_is_no_language_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGML, once" * 10)
    with pytest.raises(CheckpointFormatError, match=r"x\.gguf is no GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path / "out", quiet)
    with pytest.raises(CheckpointFormatError, match="which is not a part of a language model"):
        sources_of({"depformer.0.mystery.weight": None})
    monkeypatch.setattr(gguf_source, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[quantize\]'"):
        convert(tmp_path / "x.gguf", tmp_path / "out", quiet)

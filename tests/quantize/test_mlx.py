"""``antiphon quantize --target mlx``: rounding equals mlx's, names equal upstream's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from antiphon import cli
from antiphon.backends.mlx.layers import load_arrays
from antiphon.errors import CheckpointFormatError, ConfigError, MissingExtraError, UnsupportedError
from antiphon.models.catalog import load_checkpoint
from antiphon.models.weights import read_header
from antiphon_quantize import main as module
from antiphon_quantize.main import main
from antiphon_quantize.mlx_target import widest_group
from tests.support.make_checkpoint import make_checkpoint

WIDE: Mapping[str, Any] = {"dim": 128, "hidden_scale": 4.125}
UPSTREAM_LAYER = (
    "norm1.weight",
    "norm2.weight",
    "self_attn.in_proj.weight",
    "self_attn.out_proj.weight",
    "gating.linear_in.weight",
    "gating.linear_out.weight",
)
UPSTREAM_SLICE = (
    "emb.weight",
    "linear_in.weight",
    "linear_out.weight",
    *(f"transformer.layers.0.{name}" for name in UPSTREAM_LAYER),
)
"""As ``Lm``'s parameters are called in moshi_mlx 0.3.0, of one layer and one step of the depformer."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("quantize-mlx") / "source", **WIDE)


def make_smaller(source: Path, out: Path, recipe: str = "q4", extra: Sequence[str] = ()) -> Path:
    line = [
        "quantize",
        "--no-gate",
        "--target",
        "mlx",
        "--recipe",
        recipe,
        "--model",
        str(source),
        str(out),
        *extra,
    ]
    assert cli.run(line) == 0
    return out


def recipe_file(folder: Path, rules: str, bits: int = 4, block: int = 32) -> str:
    path = folder / "mine.toml"
    path.write_text(f'description = ""\nscheme = "affine-group"\nbits = {bits}\nblock = {block}\n{rules}')
    return str(path)


EVERYTHING = '[[quantize]]\ntensors = "*"\nwhy = "as upstream"\n'


def test_names_are_upstreams(source: Path, tmp_path: Path) -> None:
    out = make_smaller(source, tmp_path / "out", recipe_file(tmp_path, EVERYTHING))
    names = {"text_emb.weight", "text_linear.weight", "out_norm.weight"}
    names |= {f"audio_embs.{i}.weight" for i in range(16)}
    names |= {f"transformer.layers.{i}.{name}" for i in range(2) for name in UPSTREAM_LAYER}
    names |= {f"depformer.slices.{i}.{name}" for i in range(8) for name in UPSTREAM_SLICE}
    matrices = {name for name in names if "norm" not in name}
    for part in ("scales", "biases"):
        names |= {name.replace(".weight", f".{part}") for name in matrices}
    assert set(read_header(out / "model.q4.safetensors")) == names


def test_matrices_are_what_mlx_rounds_bit_by_bit(source: Path, tmp_path: Path) -> None:
    """A whole one, a slice of a stack, and a table; each in the bits its rule says."""
    found = load_arrays(make_smaller(source, tmp_path / "out") / "model.q4.safetensors")
    given = load_arrays(source / "model.safetensors")
    stack = given["depformer.layers.0.self_attn.in_proj_weight"].reshape(8, -1, 32)
    for name, original, bits in (
        (
            "transformer.layers.1.self_attn.out_proj",
            given["transformer.layers.1.self_attn.out_proj.weight"],
            4,
        ),
        ("depformer.slices.5.transformer.layers.0.self_attn.in_proj", stack[5], 4),
        ("depformer.slices.3.linear_out", given["linears.3.weight"], 8),
        ("text_linear", given["text_linear.weight"], 8),
        ("audio_embs.7", given["emb.7.weight"], 8),
    ):
        wanted = mx.quantize(original, 32, bits)
        for part, array in zip(("weight", "scales", "biases"), wanted, strict=True):
            assert found[f"{name}.{part}"].dtype == array.dtype
            assert mx.array_equal(found[f"{name}.{part}"], array), (name, part)
    norm = given["transformer.layers.0.norm1.alpha"].reshape(-1)
    assert mx.array_equal(found["transformer.layers.0.norm1.weight"], norm)


def test_the_manifest_says_what_was_done(source: Path, tmp_path: Path) -> None:
    out = load_checkpoint(str(make_smaller(source, tmp_path / "out", "q8")))
    assert out.verify() == len(out.files) == 4
    recipe = out.quantization_for("mlx")
    assert recipe is not None
    assert (recipe.bits, recipe.group_size) == (8, 64)
    assert "extra_heads.*" in recipe.keep
    assert out.backends["mlx"].dtype == "bfloat16"
    assert out.spec.name == "source-mlx-q8"
    before = load_checkpoint(str(source)).spec
    assert (out.spec.lm, out.spec.parameters) == (before.lm, before.parameters)


def test_published_files_count_their_parameters_and_make_no_new_ones(source: Path, tmp_path: Path) -> None:
    """Without a manifest too, as upstream's repositories are; and rounding twice is refused."""
    out = make_smaller(source, tmp_path / "out", recipe_file(tmp_path, EVERYTHING, bits=8))
    (out / "antiphon.json").unlink()
    config = (source / "config.json").read_text().replace("model.safetensors", "model.q8.safetensors")
    (out / "config.json").write_text(config)
    norms = 7 * 2 * 32  # which every step of the depformer has for itself here
    found = load_checkpoint(str(out)).spec.parameters
    assert found == load_checkpoint(str(source)).spec.parameters + norms
    with pytest.raises(UnsupportedError, match=r"is rounded already, in \d+ of its \d+ tensors"):
        main(["--target", "mlx", "--recipe", "q4", "--model", str(out), str(tmp_path / "again")])


def test_rows_that_no_group_divides_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [widest_group(columns, 64) for columns in (128, 96, 48)] == [64, 32, None]
    narrow = make_checkpoint(tmp_path / "narrow")
    out = make_smaller(narrow, tmp_path / "out", "q8")
    assert "others are unchanged, since no group divides their rows" in capsys.readouterr().out
    header = read_header(out / "model.q8.safetensors")
    assert header["transformer.layers.0.self_attn.in_proj.weight"].dtype == "BF16"
    assert header["depformer.slices.0.linear_out.weight"].dtype == "U32"


def test_all_of_personaplexs_steps_are_kept(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", kind="personaplex", **WIDE)
    out = load_checkpoint(str(make_smaller(source, tmp_path / "out")))
    assert out.spec.lm == load_checkpoint(str(source)).spec.lm


def test_what_cannot_be_done_is_said(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(recipe: str, model: str = str(source)) -> None:
        main(["--target", "mlx", "--recipe", recipe, "--model", model, str(tmp_path / "out")])

    with pytest.raises(UnsupportedError, match="echo has no language model; there is nothing to quantize"):
        run("q8", "echo")
    with pytest.raises(ConfigError, match=r"no recipe 'int8' for mlx.*there are: q4, q8"):
        run("int8")
    with pytest.raises(UnsupportedError, match="7 bits in groups of 32: mlx has 2, 3, 4, 5, 6, 8 bits"):
        run(recipe_file(tmp_path, EVERYTHING, bits=7))
    with pytest.raises(UnsupportedError, match=r"4 bits in groups of 48: .* groups of 32, 64, 128"):
        run(recipe_file(tmp_path, EVERYTHING, block=48))
    with pytest.raises(UnsupportedError, match=r"the recipe chooses none of the \d+ tensors of"):
        run(recipe_file(tmp_path, EVERYTHING.replace("*", "nowhere.*")))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[mlx\]'"):
        run("q8")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointFormatError):
        main(["--target", "mlx", "--recipe", "q8", "--model", str(source), str(tmp_path / "out")])
    assert not np.any([path.name.startswith(".out") for path in tmp_path.iterdir()])

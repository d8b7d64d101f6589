"""Recipes: built-in ones are complete and give reasons, others are parsed strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import CheckpointFormatError, ConfigError
from antiphon.models.catalog import load_checkpoint
from antiphon_quantize.main import TARGETS
from antiphon_quantize.recipe import load_recipe, read_recipe, recipe_names, source_options

TEXT = """
description = "half of it"
scheme = "x"
bits = 8
[[quantize]]
tensors = "transformer.*"
why = "large"
[[keep]]
tensors = "*.norm.*"
why = "small"
"""

POSITIONS = "int8_convolution_positions = "


@pytest.mark.parametrize("target", TARGETS)
def test_every_recipe_of_ours_gives_a_reason_for_every_rule(target: str) -> None:
    names = recipe_names(target)
    assert names
    for name in names:
        recipe = load_recipe(target, name)
        assert recipe.description
        for rule in (*recipe.quantize, *recipe.keep):
            assert len(rule.why) > 20, rule


def test_int8_rounds_the_layers_and_keeps_heads_and_tables() -> None:
    recipe = load_recipe("torch", "int8")
    for name in (
        "transformer.layers.3.self_attn.in_proj_weight",
        "depformer.layers.0.gating.7.linear_in.weight",
    ):
        assert recipe.chooses(name)
    for name in ("text_linear.weight", "linears.0.weight", "extra_heads.2.weight", "emb.0.weight"):
        assert not recipe.chooses(name)
    for name in ("text_emb.weight", "depformer_emb.1.weight", "depformer_in.0.weight", "out_norm.alpha"):
        assert not recipe.chooses(name)


def test_a_file_of_ones_own_is_read_and_keep_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    recipe = load_recipe("torch", str(path))
    assert (recipe.scheme, recipe.bits, recipe.options) == ("x", 8, {})
    assert recipe.chooses("transformer.0.weight")
    assert not recipe.chooses("transformer.0.norm.weight")
    assert not recipe.chooses("linear.weight")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("scheme", "schema"), r"unknown key 'schema' \(did you mean 'scheme'\?\)"),
        (TEXT.replace('why = "small"', ""), "keep lacks why"),
        (TEXT.replace("bits = 8", 'bits = "8"'), "bits"),
        (POSITIONS + "{ encodr = 9 }" + TEXT, r"'encodr' \(did you mean 'encoder'\?\); .* encoder, decoder$"),
        (POSITIONS + "{ decoder = 9.5 }" + TEXT, r"positions\.decoder is 9\.5, a whole number is needed"),
        (
            POSITIONS + "{ decoder = true }" + TEXT,
            r"positions\.decoder is true or false, a whole number is needed",
        ),
        (POSITIONS + "{ encoder = -1 }" + TEXT, r"positions\.encoder is -1; it can be 0 or more"),
    ],
)
def test_a_recipe_is_read_strictly(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CheckpointFormatError, match=message):
        read_recipe(path)


def test_what_is_no_recipe_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no recipe 'int9' for torch \(did you mean 'int8'\?\); there are: fp8, int4, "
    ):
        load_recipe("torch", "int9")
    with pytest.raises(ConfigError, match=r"cannot read the recipe .*gone\.toml: No such file"):
        load_recipe("torch", str(tmp_path / "gone.toml"))
    path = tmp_path / "mine.toml"
    path.write_text("= 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_recipe("torch", str(path))


def test_a_manifest_says_what_runs_in_bytes() -> None:
    checkpoint = load_checkpoint("tiny")
    told = source_options(load_recipe("onnx", "int8"), "int8", checkpoint)
    assert told["int8_ring_bytes"] == 1_000_000
    assert told["int8_convolution_positions"] == {"encoder": 96, "decoder": 96}
    whole = source_options(load_recipe("onnx", "float32"), "float32", checkpoint)
    assert whole.keys() == {"recipe", "quantize"}

"""The two published layouts of language models, and the mapping of tensors between them."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import CheckpointFormatError
from antiphon.models.architecture import weight_sets
from antiphon.models.shapes import lm_spec
from antiphon.models.weights import (
    Source,
    TensorInfo,
    count_parameters,
    find_sources,
    is_mlx_layout,
    unrounded_parameters,
)

CONFIG: dict[str, Any] = {
    "dim": 64, "num_layers": 1, "num_heads": 2, "context": 8, "n_q": 2, "dep_q": 2, "card": 9, "text_card": 9,
    "delays": [0, 0, 1], "depformer_weights_per_step": True,
}  # fmt: skip
TORCH = {
    "text_emb.weight": (10, 64),
    "emb.0.weight": (10, 64),
    "emb.1.weight": (10, 64),
    "out_norm.alpha": (1, 1, 64),
    "text_linear.weight": (9, 64),
    "transformer.layers.0.norm1.alpha": (1, 1, 64),
    "transformer.layers.0.self_attn.in_proj_weight": (192, 64),
    "transformer.layers.0.self_attn.out_proj.weight": (64, 64),
    "depformer_in.0.weight": (32, 64),
    "depformer_in.1.weight": (32, 64),
    "depformer_text_emb.weight": (10, 32),
    "depformer_emb.0.weight": (10, 32),
    "depformer.layers.0.norm1.alpha": (1, 1, 32),
    "depformer.layers.0.self_attn.in_proj_weight": (192, 32),
    "depformer.layers.0.self_attn.out_proj.weight": (64, 32),
    "depformer.layers.0.gating.0.linear_in.weight": (128, 32),
    "depformer.layers.0.gating.1.linear_in.weight": (128, 32),
    "linears.0.weight": (9, 32),
    "linears.1.weight": (9, 32),
}
HEADER = {name: TensorInfo("BF16", shape) for name, shape in TORCH.items()}


def as_mlx(steps: int = 2) -> dict[str, TensorInfo]:
    sources = find_sources(HEADER, CONFIG, steps)
    return {name: TensorInfo("BF16", source.shape(TORCH[source.name])) for name, source in sources.items()}


def test_every_tensor_has_its_place() -> None:
    found = find_sources(HEADER, CONFIG, 2)
    assert found["audio_embs.1.weight"] == Source("emb.1.weight")
    assert found["out_norm.weight"] == Source("out_norm.alpha", is_flat=True)
    attention = "depformer.slices.1.transformer.layers.0.self_attn.in_proj.weight"
    assert found[attention] == Source("depformer.layers.0.self_attn.in_proj_weight", 1, 2)
    assert found["depformer.slices.0.emb.weight"] == Source("depformer_text_emb.weight")
    assert found["depformer.slices.1.emb.weight"] == Source("depformer_emb.0.weight")
    assert {source.name for source in found.values()} == set(TORCH)
    assert as_mlx()[attention].shape == (96, 32)
    assert count_parameters(as_mlx()) == count_parameters(HEADER) + 32  # the norm is there for each step


def test_fewer_steps_leave_the_rest_where_it_is() -> None:
    assert not any("slices.1" in name for name in find_sources(HEADER, CONFIG, 1))
    assert not any("slices.1" in name for name in find_sources(as_mlx(), CONFIG, 1))


def test_numbered_projections_are_found_too() -> None:
    """As upstream's modules hold them, and files of fine-tuned models."""
    name = "depformer.layers.0.self_attn.in_projs.{}.weight"
    header = {
        key: info for key, info in HEADER.items() if key != "depformer.layers.0.self_attn.in_proj_weight"
    }
    header |= {name.format(step): TensorInfo("BF16", (96, 32)) for step in range(2)}
    found = find_sources(header, CONFIG, 2)
    assert found["depformer.slices.1.transformer.layers.0.self_attn.in_proj.weight"] == Source(name.format(1))


def test_the_layout_is_told_by_its_names_and_points_to_itself() -> None:
    header = as_mlx()
    assert (is_mlx_layout(HEADER), is_mlx_layout(header)) == (False, True)
    assert find_sources(header, CONFIG, 2) == {name: Source(name) for name in header}


def test_steps_that_share_weights_share_a_source() -> None:
    shared = CONFIG | {"depformer_weights_per_step_schedule": [0, 0]}
    assert weight_sets(shared, 2) == (0, 0)
    assert weight_sets(CONFIG | {"depformer_weights_per_step": False}, 2) == (0, 0)
    for header in (HEADER, as_mlx()):
        found = find_sources(header, shared, 2)
        first, second = (found[f"depformer.slices.{step}.linear_in.weight"] for step in range(2))
        assert first == second
        assert found["depformer.slices.1.linear_out.weight"] != found["depformer.slices.0.linear_out.weight"]


def test_a_spec_is_held_against_either_layout() -> None:
    assert lm_spec(CONFIG, "moshi", as_mlx(), "m") == lm_spec(CONFIG, "moshi", HEADER, "m")
    for change, words in (
        ({"n_q": 3, "delays": [0, 0, 1, 1]}, r"hold 2 audio streams \('audio_embs\.\*'\), the config says 3"),
        ({"card": 8}, r"'audio_embs\.0\.weight' has shape \[10, 64\], the config says \[9, 64\]"),
    ):
        with pytest.raises(CheckpointFormatError, match=words):
            lm_spec(CONFIG | change, "moshi", as_mlx(), "m")


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64), (3, 64)])
def test_packed_words_are_counted_as_the_numbers_they_stand_for(bits: int, group: int) -> None:
    header = dict(as_mlx())
    for name, info in as_mlx().items():
        if len(info.shape) == 2 and info.shape[1] == 64:
            rows, columns = info.shape
            scales = TensorInfo("BF16", (rows, columns // group))
            header |= {
                name: TensorInfo("U32", (rows, columns * bits // 32)),
                name.replace(".weight", ".scales"): scales,
                name.replace(".weight", ".biases"): scales,
            }
    assert unrounded_parameters(header, 64) == count_parameters(as_mlx())
    assert unrounded_parameters(as_mlx(), 64) == unrounded_parameters(HEADER, 64) == 0

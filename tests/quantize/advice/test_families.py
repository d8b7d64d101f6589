"""The published sizes, computed from the shapes."""

from __future__ import annotations

import pytest
import torch

from antiphon.backends.page_pool import PAGE_SLOTS
from antiphon.backends.pocket.factory import undisturbed
from antiphon_quantize.advice.families import MIMI_BYTES, load_families

with undisturbed():
    from pocket_tts.models.flow_lm import FlowLMModel
    from pocket_tts.models.mimi import build_mimi
    from pocket_tts.modules import text_conditioner
    from pocket_tts.utils.config import CONFIGS_DIR, load_config

# Billions of parameters (all, temporal, depformer), MB of keys and values of a window (bf16, INT8).
PUBLISHED = {
    "moshiko": (7.688, 6.577, 0.714, 1573, 811),
    "moshika": (7.688, 6.577, 0.714, 1573, 811),
    "personaplex-7b": (8.371, 6.577, 1.398, 1573, 811),
    "hibiki-1b": (1.800, 0.822, 0.714, 197, 101),
    "hibiki-2b": (2.787, 1.927, 0.447, 369, 190),
    "stt-1b-en_fr": (0.989, 0.822, 0, 98, 50.7),
    "stt-2.6b-en": (2.617, 2.466, 0, 147, 76),
    "tts-1.6b-en_fr": (1.837, 1.091, 0.565, 66 + 82, 34 + 82),
}

# Millions of parameters, without and with the encoder where that is what was published.
POCKET = {
    "pocket-tts": (None, 89.9 + 20.1),
    "pocket-tts-18m": (18.2, None),
    "pocket-tts-7m": (6.9, None),
    "pocket-tts-2m": (1.9, None),
}


def test_every_published_size_is_here() -> None:
    assert {family.name for family in load_families().speech} == set(PUBLISHED)


@pytest.mark.parametrize("name", POCKET)
def test_pockets_sizes_are_within_three_percent_of_the_published_ones(name: str) -> None:
    (family,) = [family for family in load_families().pocket if family.name == name]
    found = (family.parameters / 1e6, (family.parameters + family.encoder_parameters) / 1e6)
    for ours, published in zip(found, POCKET[name], strict=True):
        assert published is None or ours == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_within_two_percent_of_the_published_ones(name: str) -> None:
    (family,) = [family for family in load_families().speech if family.name == name]
    window = family.context / (-(-family.context // PAGE_SLOTS) * PAGE_SLOTS)  # of a session's whole pages
    found = (
        family.parameters / 1e9,
        family.temporal_parameters / 1e9,
        family.depformer_parameters / 1e9,
        window * family.kv_bytes("bf16") / 1e6,
        window * family.kv_bytes("int8") / 1e6,
    )
    assert found == pytest.approx(PUBLISHED[name], rel=0.02)


def test_int8_is_half_of_what_it_quantises() -> None:
    for family in load_families().speech:
        halved = family.weight_bytes("bf16") - 2 * family.embedding_parameters
        assert family.weight_bytes("int8") - 2 * family.embedding_parameters == pytest.approx(
            halved / 2, rel=0.005
        )


def test_the_codec_is_the_published_one() -> None:
    assert pytest.approx(4 * 96.1) == MIMI_BYTES / 1e6


def size(*parts: torch.nn.Module) -> int:
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def test_pocket_models_have_the_sizes_of_the_packages_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_conditioner, "build_tokenizer", lambda *_: None)
    listed = [
        name for family in load_families().pocket for names in family.configs.values() for name in names
    ]
    assert sorted(listed) == sorted(path.stem for path in CONFIGS_DIR.glob("*.yaml"))
    for family in load_families().pocket:
        for name in (name for names in family.configs.values() for name in names):
            config = load_config(CONFIGS_DIR / f"{name}.yaml")
            with torch.device("meta"):
                flow = FlowLMModel.from_pydantic_config(
                    config.flow_lm,
                    latent_dim=config.mimi.quantizer.dimension,
                    insert_bos_before_voice=config.flow_lm.insert_bos_before_voice,
                )
                codec = build_mimi(config.mimi)
            voices = config.flow_lm.transformer.d_model * (config.mimi.inner_dim or 0)
            encoder = voices + size(codec.encoder, codec.encoder_transformer, codec.downsample)
            assert family.parameters == size(flow, codec) - encoder + voices, name
            assert family.encoder_parameters == encoder, name
            heard, sounds = flow.transformer.layers, codec.decoder_transformer.transformer.layers
            attention = heard[0].self_attn
            assert family.layers == len(heard)
            assert family.kv_width == attention.num_kv_heads * attention.dim_per_head
            assert (family.codec_layers, family.codec_dim) == (len(sounds), sounds[0].self_attn.embed_dim)


def test_text_models_have_weights_and_licences() -> None:
    for family in load_families().text:
        assert family.weight_bytes("int4") < family.weight_bytes("bf16") / 3
        assert family.active_b <= family.parameters_b
        assert family.licence

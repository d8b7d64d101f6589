"""The published layout: configurations, checked against the shapes of the weights."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from moshi.models import loaders
from moshi.models.lm import LMModel
from moshi.modules.transformer import StreamingTransformer, StreamingTransformerLayer

from antiphon.errors import CheckpointFormatError
from antiphon.models.published import (
    LM_KEYS,
    MIMI_CONFIG,
    MIMI_NAME,
    MOSHI_CONFIG,
    MOSHI_NAME,
    TOKENIZER_NAME,
    parse_config,
)
from antiphon.models.shapes import build_spec, lm_spec, mimi_spec
from antiphon.models.spec import LMSpec, ModelSpec, PipelineKind
from antiphon.models.weights import TensorInfo, count_parameters

LM: dict[str, Any] = {
    "dim": 8, "num_layers": 2, "num_heads": 2, "context": 10, "n_q": 4, "dep_q": 2, "card": 2048,
    "text_card": 30, "delays": [0, 0, 1, 0, 1],
}  # fmt: skip
Header = dict[str, TensorInfo]


def header_of(module: torch.nn.Module) -> Header:
    """What the safetensors header of a module's weights would say."""
    return {name: TensorInfo("F32", tuple(value.shape)) for name, value in module.state_dict().items()}


def lm_header(config: dict[str, Any] = LM, *, steps: int | None = None, heads: int = 0) -> Header:
    """A language model's header, as far as it is looked at."""
    dim = config["dim"]
    header = {"text_emb.weight": TensorInfo("BF16", (config["text_card"] + 1, dim))}
    for stream in range(config["n_q"]):
        header[f"emb.{stream}.weight"] = TensorInfo("BF16", (config["card"] + 1, dim))
    for layer in range(config["num_layers"]):
        header[f"transformer.layers.{layer}.norm1.alpha"] = TensorInfo("BF16", (1, 1, dim))
    for step in range(config["dep_q"] if steps is None else steps):
        header[f"linears.{step}.weight"] = TensorInfo("BF16", (config["card"], 4))
    for head in range(heads):
        header[f"extra_heads.{head}.weight"] = TensorInfo("BF16", (6, dim))
    return header


def spec_of(raw: dict[str, Any], **header: Any) -> ModelSpec:
    """The spec of a configuration whose weights fit it, but for what ``header`` changes."""
    config = parse_config(raw, "config.json")
    return build_spec("name", config, None, {"lm": lm_header(raw, **header)} if config.lm else {})


def lm_of(raw: dict[str, Any], **header: Any) -> LMSpec:
    lm = spec_of(raw, **header).lm
    assert lm is not None
    return lm


def test_defaults_are_upstreams() -> None:
    assert loaders._lm_kwargs == MOSHI_CONFIG
    assert loaders._mimi_config == MIMI_CONFIG
    names = (MOSHI_NAME, MIMI_NAME, TOKENIZER_NAME)
    assert names == (loaders.MOSHI_NAME, loaders.MIMI_NAME, loaders.TEXT_TOKENIZER_NAME)


def test_every_argument_upstream_takes_is_known() -> None:
    taken = set(inspect.signature(LMModel).parameters)
    for transformer in (StreamingTransformer, StreamingTransformerLayer):
        taken |= set(inspect.signature(transformer).parameters)
    not_published = {
        "kwargs", "device", "dtype", "condition_provider", "d_model", "layer_class", "rope", "activation",
        "weights_per_step", "weights_per_step_schedule", "depformer_norm",
    }  # fmt: skip
    assert taken - not_published <= LM_KEYS


def test_moshi_7b_is_what_no_config_means() -> None:
    config = parse_config({}, "nowhere")
    assert config.names == {
        "lm": "model.safetensors",
        "mimi": "tokenizer-e351c8d8-checkpoint125.safetensors",
        "tokenizer": "tokenizer_spm_32k_3.model",
    }
    headers = {
        "lm": header_of(loaders.get_moshi_lm(None, device="meta")),
        "mimi": header_of(loaders.get_mimi(None, device="meta")),
    }
    spec = build_spec("moshiko", config, None, headers)
    assert (spec.kind, spec.family) == (PipelineKind.DUPLEX, "moshi")
    assert round(count_parameters(headers["mimi"]) / 1e6, 1) == 96.1
    assert round(count_parameters(headers["lm"]) / 1e9, 3) == 7.688
    assert spec.parameters == sum(count_parameters(header) for header in headers.values())
    assert (spec.frame_samples, spec.frame_ms, spec.delay_frames) == (1920, 80.0, 1)
    assert (spec.mimi.codebooks, spec.mimi.cardinality) == (8, 2048)
    assert spec.lm is not None
    assert (spec.lm.dim, spec.lm.context, spec.lm.dep_q, spec.lm.depformer_steps) == (4096, 3000, 8, 8)


@pytest.mark.parametrize(
    ("more", "kind", "family"),
    [
        ({}, PipelineKind.DUPLEX, "moshi"),
        ({"model_type": "hibiki"}, PipelineKind.DUPLEX, "hibiki"),
        ({"model_type": "tts"}, PipelineKind.TTS, "tts"),
        ({"tts_config": {"audio_delay": 1.28}}, PipelineKind.TTS, "tts"),
        ({"tts_config": {}}, PipelineKind.DUPLEX, "moshi"),
        ({"model_type": "stt", "dep_q": 0}, PipelineKind.STT, "stt"),
        ({"stt_config": {"audio_delay_seconds": 0.5}, "dep_q": 0}, PipelineKind.STT, "stt"),
        ({"dep_q": 0}, PipelineKind.STT, "stt"),
    ],
)
def test_kind_is_inferred(more: dict[str, Any], kind: PipelineKind, family: str) -> None:
    spec = spec_of(LM | more)
    assert (spec.kind, spec.family) == (kind, family)


def test_mimi_alone_is_a_codec_of_eight_codebooks() -> None:
    spec = spec_of({"model_type": "mimi"})
    assert (spec.kind, spec.family, spec.lm) == (PipelineKind.CODEC, "mimi", None)
    assert spec.mimi.codebooks == 8
    assert spec.delay_frames == 0


@pytest.mark.parametrize(
    ("n_q", "dep_q", "more", "codebooks"),
    [
        (16, 8, {}, 8),
        (32, 16, {}, 16),
        (32, 0, {}, 32),
        (32, 32, {"model_type": "tts"}, 32),
        (16, 16, {"tts_config": {"multistream": True}}, 8),
    ],
)
def test_codebooks_in_use_are_upstreams_count(
    n_q: int, dep_q: int, more: dict[str, Any], codebooks: int
) -> None:
    raw = LM | more | {"n_q": n_q, "dep_q": dep_q, "delays": [0] * (n_q + 1)}
    assert spec_of(raw).mimi.codebooks == codebooks


@pytest.mark.parametrize("said", [{"dep_q": 8}, {"dep_q": 16}, {"dep_q": 8, "model_type": "personaplex"}])
def test_personaplex_is_known_by_its_weights(said: dict[str, Any]) -> None:
    raw = LM | {"n_q": 16, "delays": [0] + [0, 1, 1, 1, 1, 1, 1, 1] * 2} | said
    spec = spec_of(raw, steps=16)
    assert (spec.kind, spec.family, spec.mimi.codebooks) == (PipelineKind.DUPLEX, "personaplex", 8)
    assert spec.lm is not None
    assert (spec.lm.dep_q, spec.lm.depformer_steps, spec.lm.config["dep_q"]) == (8, 16, 16)


def test_personaplex_whose_config_says_nothing_has_moshis_arguments() -> None:
    config = parse_config({"model_type": "personaplex", "version": "1.0"}, "config.json")
    assert config.lm == MOSHI_CONFIG
    header = lm_header(dict(MOSHI_CONFIG), steps=16)
    spec = build_spec("name", config, None, {"lm": header})
    assert spec.lm is not None
    assert (spec.family, spec.lm.dep_q, spec.lm.depformer_steps) == ("personaplex", 8, 16)


def test_heads_the_weights_hold_are_there_whatever_the_config_says() -> None:
    lm = lm_of(LM | {"dep_q": 0}, heads=4)
    assert (lm.extra_heads, lm.config["extra_heads_num_heads"], lm.config["extra_heads_dim"]) == (4, 4, 6)
    assert lm_of(LM | {"dep_q": 0}).extra_heads == 0


def test_padding_ids_are_read() -> None:
    assert (lm_of(LM).text_padding_id, lm_of(LM).text_end_padding_id) == (3, 0)
    lm = lm_of(LM | {"existing_text_padding_id": 5, "existing_text_end_padding_id": 6})
    assert (lm.text_padding_id, lm.text_end_padding_id) == (5, 6)


def test_generation_settings_are_kept_as_published() -> None:
    settings = {"lm_gen_config": {"temp": 0.5}, "model_id": {"sig": "abc", "epoch": 3}}
    assert spec_of(LM | settings).generation == settings


def test_file_names_are_read_by_role() -> None:
    names = {
        "moshi_name": "a",
        "mimi_name": "b",
        "tokenizer_name": "c",
        "mimi_config_name": "d",
        "lora_name": "e",
    }
    found = parse_config(LM | names, "config.json").names
    assert found == {"lm": "a", "mimi": "b", "tokenizer": "c", "mimi_config": "d", "lora": "e"}
    assert parse_config(LM | {"lora_name": None}, "config.json").names["lm"] == "model.safetensors"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (LM | {"num_layer": 2}, "unknown key 'num_layer' (did you mean 'num_layers'?)"),
        (LM | {"mimi_nam": "x"}, "unknown key 'mimi_nam' (did you mean 'mimi_name'?)"),
        (
            LM | {"model_type": "mosh"},
            "unknown model_type 'mosh' (did you mean 'moshi'?), known: moshi, hibiki",
        ),
        (LM | {"model_type": 3}, "config.json: model_type is 3, a string is needed"),
        (LM | {"moshi_name": 3}, "config.json: moshi_name is 3, a string is needed"),
        (LM | {"stt_config": [1]}, "config.json: stt_config is a list, an object is needed"),
        (
            {"dim": 8, "dep_q": 2},
            "name: config lacks num_layers, num_heads, context, n_q, card, text_card, delays",
        ),
        (LM | {"dim": "8"}, "name: config.dim is '8', a whole number is needed"),
        (LM | {"dim": True}, "name: config.dim is true or false, a whole number is needed"),
        (LM | {"num_layers": 0}, "name: num_layers is 0, expected at least 1"),
        (LM | {"dep_q": 5}, "name: dep_q is 5, expected 0 to n_q = 4"),
        (LM | {"delays": [0, 0]}, "name: 2 delays, expected 5 (text and 4 audio streams)"),
        (
            LM | {"delays": [0, 0, 1, 0, -1]},
            "name: delays are [0, 0, 1, 0, -1], expected whole numbers from 0",
        ),
        (LM | {"num_heads": 3}, "name: dim 8 is not divisible by num_heads 3"),
        (
            LM | {"existing_text_padding_id": None},
            "name: existing_text_padding_id is null, a whole number is needed",
        ),
        (LM | {"existing_text_padding_id": 9999}, "name: existing_text_padding_id is 9999, expected 0 to "),
        (LM | {"existing_text_end_padding_id": -1}, "existing_text_end_padding_id is -1, expected 0 to "),
        (LM | {"lm_gen_config": {"temp": None}}, "name: lm_gen_config.temp is null, a number is needed"),
        (LM | {"lm_gen_config": {"temp": "x"}}, "name: lm_gen_config.temp is 'x', a number is needed"),
        (LM | {"lm_gen_config": {"temp_text": -1}}, "lm_gen_config.temp_text is -1, expected at least 0"),
        (LM | {"lm_gen_config": {"text_temp": math.nan}}, "lm_gen_config.text_temp is nan, a finite number"),
        (LM | {"lm_gen_config": {"top_k": -1}}, "name: lm_gen_config.top_k is -1, expected at least 0"),
        (
            LM | {"lm_gen_config": {"top_k_text": 2.5}},
            "name: lm_gen_config.top_k_text is 2.5, a whole number is needed",
        ),
        (
            LM | {"lm_gen_config": {"use_sampling": 1}},
            "lm_gen_config.use_sampling is 1, true or false is needed",
        ),
        (LM | {"card": 512}, "name: the language model speaks codebooks of 512 entries, Mimi has 2048"),
        (LM | {"n_q": 64, "delays": [0] * 65}, "Mimi config: 62 codebooks are needed, it has 32"),
    ],
)
def test_faulty_config_is_refused_with_its_numbers(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        build_spec("name", parse_config(raw, "config.json"), None, {})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "header", "message"),
    [
        ({"num_layers": 3}, {}, "the weights hold 2 layers ('transformer.layers.*'), the config says 3"),
        ({"n_q": 5, "delays": [0] * 6}, {}, "the weights hold 4 audio streams ('emb.*'), the config says 5"),
        ({"text_card": 31}, {}, "'text_emb.weight' has shape [31, 8], the config says [32, 8]"),
        ({"dim": 16}, {}, "'emb.0.weight' has shape [2049, 8], the config says [2049, 16]"),
        ({}, {"steps": 1}, "the weights hold 1 depformer steps, the config says 2"),
        ({"extra_heads_num_heads": 4}, {}, "the weights hold 0 extra heads, the config says 4"),
        ({"extra_heads_num_heads": "4"}, {}, "extra_heads_num_heads is '4', a whole number is needed"),
    ],
)
def test_weights_that_do_not_fit_are_refused_with_both_numbers(
    changed: dict[str, Any], header: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointFormatError) as refused:
        lm_spec(LM | changed, "moshi", lm_header(**header), "name")
    assert message in str(refused.value)


def test_weights_of_another_layout_are_refused() -> None:
    header = {name.replace("emb.0", "embeddings.0"): info for name, info in lm_header().items()}
    with pytest.raises(CheckpointFormatError, match="the weights hold 3 audio streams"):
        lm_spec(LM, "moshi", header, "name")
    header = {name.removesuffix(".weight"): info for name, info in lm_header().items()}
    with pytest.raises(CheckpointFormatError, match=r"the weights hold no matrix 'extra_heads\.0\.weight'"):
        lm_spec(LM, "stt", {**lm_header(), "extra_heads.0.bias": TensorInfo("BF16", (6,))}, "x")
    with pytest.raises(CheckpointFormatError, match=r"the weights hold no 'emb\.0\.weight'"):
        lm_spec(LM, "moshi", header, "name")


def test_packed_integers_are_not_held_against_the_shape() -> None:
    packed = {name: TensorInfo("U32", (9, 1)) for name in ("emb.0.weight", "text_emb.weight")}
    assert lm_spec(LM, "moshi", lm_header() | packed, "name").dim == 8


def test_lora_weights_need_a_config_that_says_so() -> None:
    headers = {"lm": lm_header(), "lora": {"a": TensorInfo("F32", (7,))}}
    with pytest.raises(
        CheckpointFormatError, match="LoRA weights are named, but the config does not say lora: true"
    ):
        build_spec("name", parse_config(LM, "config.json"), None, headers)
    spec = build_spec("name", parse_config(LM | {"lora": True}, "config.json"), None, headers)
    assert spec.parameters == count_parameters(headers["lm"]) + 7


MIMI = dict(MIMI_CONFIG)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MIMI | {"frame_rat": 1}, "unknown key 'frame_rat' (did you mean 'frame_rate'?)"),
        ({"sample_rate": 24000}, "Mimi config lacks channels, frame_rate, seanet, quantizer, transformer"),
        (MIMI | {"frame_rate": 11}, "24000 samples at 11 frames a second is no whole frame"),
        (MIMI | {"quantizer": {"n_q": 32}}, "quantizer.bins is null, a whole number is needed"),
        (MIMI | {"quantizer": {"n_q": 8, "bins": 4}}, "the weights hold 32 codebooks, it says 8"),
    ],
)
def test_faulty_mimi_config_is_refused_with_its_numbers(config: dict[str, Any], message: str) -> None:
    header = header_of(loaders.get_mimi(None, device="meta"))
    with pytest.raises(CheckpointFormatError) as refused:
        mimi_spec(config, 8, header, "name")
    assert message in str(refused.value)

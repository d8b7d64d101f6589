"""The file layout of published Moshi-family repositories.

A repository has a ``config.json`` (language model arguments, and the names of the other files), a safetensors
file for the language model, one for Mimi, and a SentencePiece model. The meaning of the keys follows
``moshi.models.loaders.CheckpointInfo`` of kyutai-labs/moshi 0.2.13. A repository without ``config.json`` is
Moshi 7B, or the full-size Mimi.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import CheckpointFormatError, hint
from antiphon.models.spec import PipelineKind
from antiphon.models.strict import check_type

MOSHI_NAME: Final = "model.safetensors"
MIMI_NAME: Final = "tokenizer-e351c8d8-checkpoint125.safetensors"
TOKENIZER_NAME: Final = "tokenizer_spm_32k_3.model"
CODEC_CODEBOOKS: Final = 8
"""Default number of RVQ levels without a language model: upstream's default."""

MIMI_CONFIG: Final[Mapping[str, Any]] = {
    "sample_rate": 24000,
    "channels": 1,
    "frame_rate": 12.5,
    "seanet": {
        "channels": 1,
        "dimension": 512,
        "causal": True,
        "n_filters": 64,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [8, 6, 5, 4],
        "true_skip": True,
    },
    "quantizer": {
        "dimension": 256,
        "n_q": 32,
        "bins": 2048,
        "input_dimension": 512,
        "output_dimension": 512,
    },
    "transformer": {
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 8,
        "causal": True,
        "layer_scale": 0.01,
        "context": 250,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 2048,
        "input_dimension": 512,
        "output_dimensions": [512],
    },
}

MOSHI_CONFIG: Final[Mapping[str, Any]] = {
    "dim": 4096,
    "text_card": 32000,
    "existing_text_padding_id": 3,
    "n_q": 16,
    "dep_q": 8,
    "card": 2048,
    "num_heads": 32,
    "num_layers": 32,
    "hidden_scale": 4.125,
    "causal": True,
    "layer_scale": None,
    "context": 3000,
    "max_period": 10000,
    "gating": "silu",
    "norm": "rms_norm_f32",
    "positional_embedding": "rope",
    "depformer_dim": 1024,
    "depformer_dim_feedforward": 4224,
    "depformer_num_heads": 16,
    "depformer_num_layers": 6,
    "depformer_layer_scale": None,
    "depformer_multi_linear": True,
    "depformer_context": 8,
    "depformer_max_period": 10000,
    "depformer_gating": "silu",
    "depformer_pos_emb": "none",
    "depformer_weights_per_step": True,
    "delays": [0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1],
}


FAMILIES: Final[Mapping[str, PipelineKind]] = {
    "moshi": PipelineKind.DUPLEX,
    "hibiki": PipelineKind.DUPLEX,
    "personaplex": PipelineKind.DUPLEX,
    "stt": PipelineKind.STT,
    "tts": PipelineKind.TTS,
    "mimi": PipelineKind.CODEC,
}

POCKET: Final = "pocket"
"""The name of the family of Pocket-TTS, which has another layout: a YAML configuration, or a manifest with
graphs.
"""

TRANSLATING: Final = frozenset({"hibiki"})
"""The families of speech translation."""

ROLE_KEYS: Final[Mapping[str, str]] = {
    "lm": "moshi_name",
    "mimi": "mimi_name",
    "tokenizer": "tokenizer_name",
    "mimi_config": "mimi_config_name",
    "lora": "lora_name",
}
GENERATION_KEYS: Final = ("lm_gen_config", "tts_config", "stt_config", "model_id")
_REMARKS: Final = frozenset({"version", "license", "architectures", "torch_dtype", "dtype"})

_WORDS = """
dim num_layers num_heads context n_q dep_q card text_card delays
text_card_out demux_second_text_stream demux_second_stream hidden_scale norm_emb bias_proj quantize
existing_text_padding_id existing_text_end_padding_id extra_heads_num_heads extra_heads_dim
gradient_checkpointing conditioners fuser lora lora_rank lora_scaling
depformer_dim depformer_multi_linear depformer_weights_per_step depformer_weights_per_step_schedule
depformer_low_rank_embeddings depformer_pos_emb
"""
_TRANSFORMER_WORDS = """
num_heads num_layers dim_feedforward layer_scale context causal max_period gating norm kv_repeat
positional_embedding positional_scale betas cross_attention skip_self_attn checkpointing
"""
LM_KEYS: Final = frozenset(
    [*_WORDS.split(), *_TRANSFORMER_WORDS.split()]
    + [f"depformer_{word}" for word in _TRANSFORMER_WORDS.split()]
)
"""Every argument of a published language model: arguments of LMModel, and of its two transformers."""


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """A parsed ``config.json``: file names by role, LM arguments (None: no LM), the rest.

    ``lm`` has the published arguments unchanged. For roles that the file does not name, ``names`` has the
    file names of Moshi 7B.
    """

    names: Mapping[str, str]
    family: str
    lm: Mapping[str, Any] | None
    generation: Mapping[str, Any]


def parse_config(raw: Mapping[str, Any], where: str) -> PublishedConfig:
    """Parse a published ``config.json``; an empty one stands for a repository without the file (Moshi 7B).

    A config without LM arguments describes a plain codec if ``model_type`` is "mimi", otherwise a model with
    Moshi 7B's arguments. Raises CheckpointFormatError for an unknown key or model type.
    """
    family = raw.get("model_type", "moshi")
    check_type(family, str, f"{where}: model_type")
    if family not in FAMILIES:
        raise CheckpointFormatError(
            f"{where}: unknown model_type '{family}'{hint(family, FAMILIES)}, known: {', '.join(FAMILIES)}"
        )
    generation = {key: raw[key] for key in GENERATION_KEYS if raw.get(key)}
    for key, value in generation.items():
        check_type(value, dict, f"{where}: {key}")
    others = frozenset({"model_type", *ROLE_KEYS.values(), *GENERATION_KEYS, *_REMARKS})
    check_lm_keys(raw, where, others)
    lm = {key: value for key, value in raw.items() if key not in others}
    if not lm and family != "mimi":
        lm = dict(MOSHI_CONFIG)
    if "tts_config" in generation:
        family = "tts"
    elif "stt_config" in generation or lm.get("dep_q") == 0:
        family = "stt"
    return PublishedConfig(_file_names(raw, where, family), family, lm or None, generation)


def check_lm_keys(values: Iterable[str], where: str, others: frozenset[str] = frozenset()) -> None:
    """Raise CheckpointFormatError, with the nearest name, for a key that is neither an LM argument nor one of
    ``others``."""
    for key in values:
        if key not in LM_KEYS | others:
            raise CheckpointFormatError(f"{where} has an unknown key '{key}'{hint(key, LM_KEYS | others)}")


def _file_names(raw: Mapping[str, Any], where: str, family: str) -> dict[str, str]:
    names = {"mimi": MIMI_NAME}
    if family != "mimi":
        names |= {"lm": MOSHI_NAME, "tokenizer": TOKENIZER_NAME}
    for role, key in ROLE_KEYS.items():
        if raw.get(key) is not None:
            check_type(raw[key], str, f"{where}: {key}")
            names[role] = raw[key]
    return names

"""The layout Moshi-family repositories are published in, sorted out.

A repository holds ``config.json`` (language model arguments, beside the names of the other files), a
safetensors file for the language model, one for Mimi, and a SentencePiece model. The meaning of the
keys follows ``moshi.models.loaders.CheckpointInfo`` of kyutai-labs/moshi 0.2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import CheckpointFormatError, hint
from antiphon.models import defaults
from antiphon.models.spec import PipelineKind
from antiphon.models.strict import check_type

FAMILIES: Final[Mapping[str, PipelineKind]] = {
    "moshi": PipelineKind.DUPLEX,
    "hibiki": PipelineKind.DUPLEX,
    "personaplex": PipelineKind.DUPLEX,
    "stt": PipelineKind.STT,
    "tts": PipelineKind.TTS,
    "mimi": PipelineKind.CODEC,
}

TRANSLATING: Final = frozenset({"hibiki"})
"""The families that repeat in another language what they hear."""

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
"""Every argument a published language model has been given: LMModel's own, and its two transformers'."""


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """A ``config.json``, sorted out: file names by role, LM arguments (None: no LM), the rest.

    ``lm`` is the published arguments unchanged. ``names`` holds, for roles the file does not name,
    the names Moshi 7B was published under.
    """

    names: Mapping[str, str]
    family: str
    lm: Mapping[str, Any] | None
    generation: Mapping[str, Any]


def parse_config(raw: Mapping[str, Any] | None, where: str) -> PublishedConfig:
    """Sort out a published ``config.json``; None stands for a repository without one (Moshi 7B).

    A config with no LM argument at all names a plain codec when ``model_type`` is "mimi", and a model
    with Moshi 7B's arguments otherwise. Raises CheckpointFormatError for an unknown key or model type.
    """
    raw = raw or {}
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
        lm = dict(defaults.MOSHI_CONFIG)
    if "tts_config" in generation:
        family = "tts"
    elif "stt_config" in generation or lm.get("dep_q") == 0:
        family = "stt"
    return PublishedConfig(_file_names(raw, where, family), family, lm or None, generation)


def check_lm_keys(values: Iterable[str], where: str, others: frozenset[str] = frozenset()) -> None:
    """Raise CheckpointFormatError, naming the nearest, for a key that is neither an LM argument nor other."""
    for key in values:
        if key not in LM_KEYS | others:
            raise CheckpointFormatError(f"{where} has an unknown key '{key}'{hint(key, LM_KEYS | others)}")


def _file_names(raw: Mapping[str, Any], where: str, family: str) -> dict[str, str]:
    names = {"mimi": defaults.MIMI_NAME}
    if family != "mimi":
        names |= {"lm": defaults.MOSHI_NAME, "tokenizer": defaults.TOKENIZER_NAME}
    for role, key in ROLE_KEYS.items():
        if raw.get(key) is not None:
            check_type(raw[key], str, f"{where}: {key}")
            names[role] = raw[key]
    return names

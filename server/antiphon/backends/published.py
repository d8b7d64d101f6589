"""Shapes of networks as published configurations say them, in the words of our modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.errors import UnsupportedError

_SEANET: Final = {
    "activation": "ELU",
    "norm": "none",
    "pad_mode": "constant",
    "causal": True,
    "true_skip": True,
}


@dataclass(frozen=True, slots=True)
class SeanetConfig:
    """The part of a published ``seanet`` table that shapes the network. ``ratios`` is in decoder order."""

    channels: int
    dimension: int
    n_filters: int
    n_residual_layers: int
    ratios: tuple[int, ...]
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    dilation_base: int
    compress: int
    alpha: float

    @classmethod
    def from_published(cls, table: Mapping[str, Any]) -> SeanetConfig:
        """Read a published table.

        Raises:
            UnsupportedError: an option no published Mimi uses.
        """
        for key, wanted in _SEANET.items():
            if table.get(key, wanted) != wanted:
                raise UnsupportedError(f"seanet option {key} is {table[key]!r}; only {wanted!r} can be run")
        keys = [name for name in cls.__dataclass_fields__ if name not in ("ratios", "alpha")]
        alpha = table.get("activation_params", {}).get("alpha", 1.0)
        return cls(ratios=tuple(table["ratios"]), alpha=alpha, **{key: table[key] for key in keys})


def codec_transformer(table: Mapping[str, Any], frame_positions: int) -> dict[str, Any]:
    """Fields of a TransformerConfig for Mimi's, from its published table.

    Raises:
        UnsupportedError: it is wider inside than outside.
    """
    if table["d_model"] != table["input_dimension"] or list(table["output_dimensions"]) != [table["d_model"]]:
        raise UnsupportedError(
            f"a Mimi transformer of width {table['d_model']} between {table['input_dimension']} and "
            f"{table['output_dimensions']}: all of them have to be equal"
        )
    return {
        "dim": table["d_model"],
        "heads": table["num_heads"],
        "layers": table["num_layers"],
        "context": table["context"],
        "feed_forward": table["dim_feedforward"],
        "kv_repeat": table.get("kv_repeat", 1),
        "gating": table.get("gating", "none"),
        "norm": table["norm"],
        "rope": table["positional_embedding"],
        "max_period": table["max_period"],
        "layer_scale": table.get("layer_scale") is not None,
        "frame_positions": frame_positions,
    }


def temporal_transformer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a TransformerConfig for a language model's, from its published arguments.

    Raises:
        UnsupportedError: positions that no published model has.
    """
    rope = config.get("positional_embedding", "sin")
    if rope not in ("rope", "rope_concat", "none"):
        raise UnsupportedError(f"positional_embedding is {rope!r}; it can be rope, rope_concat or none")
    return {
        "dim": config["dim"],
        "heads": config["num_heads"],
        "layers": config["num_layers"],
        "context": config["context"],
        "feed_forward": int(config.get("hidden_scale", 4) * config["dim"]),
        "kv_repeat": config.get("kv_repeat", 1),
        "gating": config.get("gating", "none"),
        "norm": config.get("norm", "layer_norm"),
        "rope": rope,
        "max_period": config.get("max_period", 10000),
        "layer_scale": config.get("layer_scale") is not None,
    }


def depth_transformer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a DepformerConfig, all but its steps and their widths, from published arguments.

    Raises:
        UnsupportedError: positions that no published model has.
    """
    position = config.get("depformer_pos_emb", "sin")
    if position != "none":
        raise UnsupportedError(f"depformer_pos_emb is {position!r}; only 'none' can be run")
    return {
        "hidden_dim": config["dim"],
        "dim": config["depformer_dim"],
        "heads": config["depformer_num_heads"],
        "layers": config["depformer_num_layers"],
        "card": config["card"],
        "text_card": config["text_card"],
        "kv_repeat": config.get("depformer_kv_repeat", config.get("kv_repeat", 1)),
        "gating": config.get("depformer_gating", config.get("gating", "none")),
        "norm": config.get("norm", "layer_norm"),
        "output_norm": config.get("depformer_norm"),
        "low_rank": config.get("depformer_low_rank_embeddings"),
        "bias": config.get("bias_proj", False),
        "layer_scale": config.get("depformer_layer_scale", config.get("layer_scale")) is not None,
        "demux": demuxes(config),
    }


def demuxes(config: Mapping[str, Any]) -> bool:
    """Whether text tokens carry two streams in one."""
    return bool(config.get("demux_second_text_stream", config.get("demux_second_stream", False)))

"""Makes the spec of a model from its configuration, checked against the shapes of its weights.

Some published configurations do not match their weights, so this module reads the weights' headers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from antiphon.errors import CheckpointFormatError
from antiphon.models.published import CODEC_CODEBOOKS, FAMILIES, MIMI_CONFIG, PublishedConfig
from antiphon.models.spec import LMSpec, MimiSpec, ModelSpec, PipelineKind
from antiphon.models.strict import check_keys, check_type
from antiphon.models.weights import (
    AUDIO_EMBEDDINGS,
    SLICES,
    TensorInfo,
    count_modules,
    count_parameters,
    is_mlx_layout,
    unrounded_parameters,
)
from antiphon.values import Types

_NUMBERS: Final = ("dim", "num_layers", "num_heads", "context", "n_q", "card", "text_card")
_REQUIRED: Final[Mapping[str, Types]] = {
    **dict.fromkeys(_NUMBERS, int),
    "dep_q": int,
    "delays": list,
}
_PADDING_IDS: Final = {"existing_text_padding_id": 3, "existing_text_end_padding_id": 0}
_TEMPERATURES: Final = ("temp", "temp_text", "text_temp")
_TOP_KS: Final = ("top_k", "top_k_text")
_MIMI_KEYS: Final[Mapping[str, Types]] = {
    "sample_rate": int,
    "channels": int,
    "frame_rate": float,
    "seanet": dict,
    "quantizer": dict,
    "transformer": dict,
}


def build_spec(
    name: str,
    config: PublishedConfig,
    mimi_config: Mapping[str, Any] | None,
    headers: Mapping[str, Mapping[str, TensorInfo]],
    *,
    codebooks: int | None = None,
    parameters: int | None = None,
) -> ModelSpec:
    """Make the spec of a model from its configuration and the headers of its weights.

    ``headers`` maps the role "mimi", and "lm" and "lora" if present, to tensor infos. ``mimi_config`` None
    means the full-size Mimi. ``codebooks`` overrides the number of RVQ levels in use. ``parameters``
    overrides the counted number of parameters, because packed weights contain fewer numbers than the model
    has parameters. Raises CheckpointFormatError, with both numbers, if the configuration and the weights
    disagree.
    """
    mimi_config = MIMI_CONFIG if mimi_config is None else mimi_config
    _check_generation(config.generation.get("lm_gen_config", {}), name)
    if parameters is None:
        dim = (config.lm or {}).get("dim")
        counted = [
            unrounded_parameters(header, dim) or count_parameters(header) for header in headers.values()
        ]
        parameters = sum(counted)
    if config.lm is None:
        mimi = mimi_spec(mimi_config, codebooks, headers.get("mimi"), name)
        return ModelSpec(name, PipelineKind.CODEC, "mimi", mimi, None, parameters, config.generation)
    if "lora" in headers and not config.lm.get("lora"):
        raise CheckpointFormatError(f"{name}: LoRA weights are named, but the config does not say lora: true")
    lm = lm_spec(config.lm, config.family, headers.get("lm"), name)
    family = "personaplex" if lm.depformer_steps > lm.dep_q else config.family
    if codebooks is None:
        codebooks = max(lm.dep_q, lm.n_q - lm.dep_q)
        if config.generation.get("tts_config", {}).get("multistream"):
            codebooks //= 2
    mimi = mimi_spec(mimi_config, codebooks, headers.get("mimi"), name)
    if lm.card != mimi.cardinality:
        raise CheckpointFormatError(
            f"{name}: the language model speaks codebooks of {lm.card} entries, Mimi has {mimi.cardinality}"
        )
    return ModelSpec(name, FAMILIES[family], family, mimi, lm, parameters, config.generation)


def lm_spec(
    config: Mapping[str, Any], family: str, header: Mapping[str, TensorInfo] | None, where: str
) -> LMSpec:
    """Make the spec of a language model, checked against its weights if their header is given.

    If the weights have more depformer steps or extra heads than the configuration, the numbers of the weights
    apply. A duplex model with a depformer step for every audio stream has PersonaPlex's layout: the second
    half of the steps predicts the model's next input, and the server does not use this half.
    """
    present = {key: config[key] for key in _REQUIRED if key in config}
    check_keys(present, f"{where}: config", required=_REQUIRED)
    _check_numbers(config, where)
    arguments = dict(config)
    if header is not None:
        arguments |= _weights_win(config, header, where)
        _check_shapes(arguments, header, where)
    steps = arguments["dep_q"]
    guesses_input = family in ("moshi", "personaplex") and steps == arguments["n_q"]
    return LMSpec(
        **{key: arguments[key] for key in _NUMBERS},
        dep_q=steps // 2 if guesses_input else steps,
        delays=tuple(arguments["delays"]),
        text_padding_id=arguments.get("existing_text_padding_id", 3),
        extra_heads=arguments.get("extra_heads_num_heads", 0),
        config=arguments,
    )


def _check_numbers(config: Mapping[str, Any], where: str) -> None:
    for key in _NUMBERS:
        if config[key] < 1:
            raise CheckpointFormatError(f"{where}: {key} is {config[key]}, expected at least 1")
    n_q, dep_q, delays = config["n_q"], config["dep_q"], config["delays"]
    if not 0 <= dep_q <= n_q:
        raise CheckpointFormatError(f"{where}: dep_q is {dep_q}, expected 0 to n_q = {n_q}")
    if len(delays) != n_q + 1:
        raise CheckpointFormatError(
            f"{where}: {len(delays)} delays, expected {n_q + 1} (text and {n_q} audio streams)"
        )
    if not all(type(delay) is int and delay >= 0 for delay in delays):
        raise CheckpointFormatError(f"{where}: delays are {delays}, expected whole numbers from 0")
    if config["dim"] % config["num_heads"]:
        raise CheckpointFormatError(
            f"{where}: dim {config['dim']} is not divisible by num_heads {config['num_heads']}"
        )
    for key, default in _PADDING_IDS.items():
        token = config.get(key, default)
        check_type(token, int, f"{where}: {key}")
        if not 0 <= token < config["text_card"]:
            raise CheckpointFormatError(f"{where}: {key} is {token}, expected 0 to {config['text_card'] - 1}")


def _check_generation(settings: Mapping[str, Any], where: str) -> None:
    """Check the values that :meth:`SamplingParameters.from_generation` reads."""
    where = f"{where}: lm_gen_config"
    check_type(settings.get("use_sampling", True), bool, f"{where}.use_sampling")
    for keys, types in ((_TEMPERATURES, float), (_TOP_KS, int)):
        for key in settings.keys() & set(keys):
            value = settings[key]
            check_type(value, types, f"{where}.{key}")
            if not 0 <= value < math.inf:
                raise CheckpointFormatError(f"{where}.{key} is {value}, expected at least 0")


def _weights_win(config: Mapping[str, Any], header: Mapping[str, TensorInfo], where: str) -> dict[str, int]:
    check_type(config.get("extra_heads_num_heads", 0), int, f"{where}: extra_heads_num_heads")
    linears = SLICES if is_mlx_layout(header) else "linears"
    steps, heads = count_modules(header, linears), count_modules(header, "extra_heads")
    for what, found, said in (
        ("depformer steps", steps, config["dep_q"]),
        ("extra heads", heads, config.get("extra_heads_num_heads", 0)),
    ):
        if found < said:
            raise CheckpointFormatError(f"{where}: the weights hold {found} {what}, the config says {said}")
    if not heads:
        return {"dep_q": steps}
    head = header.get("extra_heads.0.weight")
    if head is None or not head.shape:
        raise CheckpointFormatError(f"{where}: the weights hold no matrix 'extra_heads.0.weight'")
    return {"dep_q": steps, "extra_heads_num_heads": heads, "extra_heads_dim": head.shape[0]}


def _check_shapes(config: Mapping[str, Any], header: Mapping[str, TensorInfo], where: str) -> None:
    tables = AUDIO_EMBEDDINGS if is_mlx_layout(header) else "emb"
    for what, prefix, key in (
        ("audio streams", tables, "n_q"),
        ("layers", "transformer.layers", "num_layers"),
    ):
        found = count_modules(header, prefix)
        if found != config[key]:
            raise CheckpointFormatError(
                f"{where}: the weights hold {found} {what} ('{prefix}.*'), the config says {config[key]}"
            )
    for name, rows in (
        (f"{tables}.0.weight", config["card"] + 1),
        ("text_emb.weight", config["text_card"] + 1),
    ):
        info = header.get(name)
        if info is None:
            raise CheckpointFormatError(f"{where}: the weights hold no '{name}'")
        if info.is_floating and info.shape != (rows, config["dim"]):
            raise CheckpointFormatError(
                f"{where}: '{name}' has shape {list(info.shape)}, the config says {[rows, config['dim']]}"
            )


def mimi_spec(
    config: Mapping[str, Any], codebooks: int | None, header: Mapping[str, TensorInfo] | None, where: str
) -> MimiSpec:
    """Make the spec of a Mimi with ``codebooks`` RVQ levels in use (None: upstream's 8, or all if there are
    fewer).

    Raises CheckpointFormatError if there are fewer levels, or if the weights have another number of levels.
    """
    where = f"{where}: Mimi config"
    check_keys(config, where, required=_MIMI_KEYS)
    quantizer = config["quantizer"]
    levels, bins = quantizer.get("n_q"), quantizer.get("bins")
    check_type(levels, int, f"{where}: quantizer.n_q")
    check_type(bins, int, f"{where}: quantizer.bins")
    sample_rate, frame_rate = config["sample_rate"], config["frame_rate"]
    if sample_rate <= 0 or frame_rate <= 0 or (sample_rate / frame_rate) % 1:
        raise CheckpointFormatError(
            f"{where}: {sample_rate} samples at {frame_rate} frames a second is no whole frame"
        )
    codebooks = min(CODEC_CODEBOOKS, levels) if codebooks is None else codebooks
    if not 1 <= codebooks <= levels:
        raise CheckpointFormatError(f"{where}: {codebooks} codebooks are needed, it has {levels}")
    if header is not None:
        found = sum(count_modules(header, f"quantizer.rvq_{part}.vq.layers") for part in ("first", "rest"))
        if found != levels:
            raise CheckpointFormatError(f"{where}: the weights hold {found} codebooks, it says {levels}")
    return MimiSpec(sample_rate, float(frame_rate), codebooks, bins, config)

"""From a published language model's safetensors, of PyTorch's layout or of mlx's, to our model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.conditions import embed_choice
from antiphon.backends.mlx.files import load_arrays
from antiphon.backends.mlx.lm import LanguageModel
from antiphon.backends.mlx.matrix import Weights
from antiphon.errors import UnsupportedError
from antiphon.models.conditioning import description_entry
from antiphon.models.mlx_layout import Source, find_sources
from antiphon.models.weights import read_header

_CONDITIONS = "condition_provider."


def load_lm(
    path: Path,
    config: Mapping[str, Any],
    *,
    steps: int,
    family: str = "moshi",
    dtype: mx.Dtype = mx.float32,
    int8_kv: bool = False,
    cross_positions: int = 0,
) -> LanguageModel:
    """Load a published language model, with the corrections upstream makes, to compute in ``dtype``.

    Matrices that the file has in groups of a few bits stay so; their scales become ``dtype``.

    Raises:
        CheckpointFormatError: tensors are missing, unknown, or of another shape than the config's.
        UnsupportedError: an option, or a kind of rounding, that this backend does not run.
    """
    published = load_arrays(path)
    rounded = [name for name, array in published.items() if array.dtype == mx.int8]
    if rounded:
        raise UnsupportedError(
            f"{path} is INT8 with a scale for each row, in {len(rounded)} of its {len(published)} "
            "tensors, and made for torch; use the original, or: antiphon quantize --target mlx"
        )
    sources = find_sources(read_header(path), config, steps)
    weights = Weights({name: cut(published[s.name], s) for name, s in sources.items()}, str(path), dtype)
    model = LanguageModel(
        config, steps=steps, weights=weights, int8_kv=int8_kv, cross_positions=cross_positions
    )
    if family == "hibiki":
        # As upstream: an end of text that is sampled too early is heard by the model as padding.
        model.text_emb = replace(model.text_emb, table=model.text_emb.table.with_row(2, 3))
    entry = description_entry(config, family)
    if entry is not None:
        model.condition = embed_choice(weights, config, "description", entry).astype(dtype)
    weights.finish(ignored=(_CONDITIONS,))
    return model


def cut(whole: mx.array, source: Source) -> mx.array:
    """The part of a file's tensor that a source speaks of."""
    if source.is_flat:
        return whole.reshape(-1)
    if source.parts == 1:
        return whole
    return whole.reshape(source.parts, -1, *whole.shape[1:])[source.part]

"""What a tts model is conditioned on besides its text, computed once in float32: a constant, and sources of
voices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from antiphon.backends.base import FloatArray
from antiphon.backends.mlx.matrix import Matrix, Weights
from antiphon.models.conditioning import PROVIDER, check_conditions, chosen_entry, source_positions
from antiphon.models.speaker import CONDITION, SpeakerShape
from antiphon.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditioners of one model.

    ``constant`` float32 ``[1, dim]`` is added to every input. ``projection`` is ``[dim, width]``, ``empty``
    ``[dim]`` stands for no voice, ``positions`` ``[5 * T, dim]`` is added to everything.
    """

    constant: mx.array | None = None
    projection: Matrix | None = None
    empty: mx.array | None = None
    positions: mx.array | None = None

    def source(self, speakers: FloatArray | None) -> mx.array:
        """The source ``[5 * T, dim]`` of up to five voices, float32 ``[V, T, width]``; None for no voice."""
        assert self.projection is not None
        assert self.empty is not None
        assert self.positions is not None
        source = mx.broadcast_to(self.empty, self.positions.shape)
        if speakers is not None:
            said = self.projection.product(mx.array(speakers).flatten(0, 1))
            source = mx.concatenate([said, source[len(said) :]])
        return source + self.positions


def load_conditions(weights: Weights, spec: ModelSpec) -> Conditions:
    """The conditioners of a tts model, of its file's tensors in float32.

    Raises:
        UnsupportedError: conditions that no published model has, or joined in another way.
    """
    config: Mapping[str, Any] = {} if spec.lm is None else spec.lm.config
    if not config.get("conditioners"):
        return Conditions()
    check_conditions(config)
    tables = [_choice(weights, config, name) for name in config["fuser"].get("sum") or []]
    constant = mx.stack(tables).sum(axis=0) if tables else None
    shape = SpeakerShape.of(spec)
    if shape is None:
        return Conditions(constant)
    name, dim = f"{PROVIDER}.{CONDITION}", config["dim"]
    projection = weights.matrix(f"{name}.output_proj", dim, shape.width)
    positions = mx.array(source_positions(config, shape.positions, dim))
    return Conditions(constant, projection, _padding(weights, name, dim), positions)


def _choice(weights: Weights, config: Mapping[str, Any], name: str) -> mx.array:
    """The vector ``[1, dim]`` of what we choose from a table, or of no choice."""
    entry = chosen_entry(config, name)
    if entry is None:
        return _padding(weights, f"{PROVIDER}.{name}", config["dim"])[None]
    return embed_choice(weights, config, name, entry)


def embed_choice(weights: Weights, config: Mapping[str, Any], name: str, entry: int) -> mx.array:
    """One entry of a lookup conditioner's table as a vector ``[1, dim]``."""
    prefix, width = f"{PROVIDER}.{name}", config["conditioners"][name]["lut"]["dim"]
    chosen = weights.matrix(f"{prefix}.embed", None, width).rows(mx.array([entry]))
    if not weights.has(f"{prefix}.output_proj.weight"):
        return chosen
    return weights.matrix(f"{prefix}.output_proj", config["dim"], width).product(chosen)


def _padding(weights: Weights, prefix: str, dim: int) -> mx.array:
    """What was learnt for the absence of a condition, or nothing."""
    name = f"{prefix}.learnt_padding"
    return weights.array(name, (1, 1, dim)).reshape(-1) if weights.has(name) else mx.zeros(dim)

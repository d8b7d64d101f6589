"""The language model: tokens of every stream become text logits and a hidden vector, from which the depformer
generates audio tokens.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.4. The
depformer (depth transformer) runs over the codebooks of a single frame. Its keys and values exist only within
one call and are not part of the state. Each step is a slice with its own weights; slices that share weights
share arrays. Published files have the layout of PyTorch or of mlx. The conditions of a tts model, except for
its text, are computed once in float32: a constant, and sources of voices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx

from antiphon.backends.base import FloatArray
from antiphon.backends.mlx.layers import (
    Matrix,
    StreamEmbeddings,
    Weights,
    load_arrays,
    load_embedding,
    load_feed_forward,
    load_norm,
)
from antiphon.backends.mlx.state import Step
from antiphon.backends.mlx.transformer import (
    StreamingTransformer,
    load_layer_scales,
    merge_heads,
    scaled,
    split_projection,
)
from antiphon.backends.snapshots import TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.install import antiphon_command
from antiphon.models.architecture import DepformerConfig, LanguageConfig
from antiphon.models.conditioning import (
    CONDITION,
    PROVIDER,
    SpeakerShape,
    check_conditions,
    chosen_entry,
    description_entry,
    source_positions,
)
from antiphon.models.spec import ModelSpec
from antiphon.models.weights import AUDIO_EMBEDDINGS, SLICES, Source, find_sources, read_header


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditioners of one model.

    ``constant`` float32 ``[1, dim]`` is added to every input. ``projection`` is ``[dim, width]``, ``empty``
    ``[dim]`` stands for no voice, ``positions`` ``[5 * T, dim]`` is added to every source.
    """

    constant: mx.array | None = None
    projection: Matrix | None = None
    empty: mx.array | None = None
    positions: mx.array | None = None

    def source(self, speakers: FloatArray | None) -> mx.array:
        """The cross-attention source ``[5 * T, dim]`` of up to five voices, float32 ``[V, T, width]``; None
        for no voice.
        """
        assert self.projection is not None
        assert self.empty is not None
        assert self.positions is not None
        source = mx.broadcast_to(self.empty, self.positions.shape)
        if speakers is not None:
            said = self.projection.product(mx.array(speakers).flatten(0, 1))
            source = mx.concatenate([said, source[len(said) :]])
        return source + self.positions


def load_conditions(weights: Weights, spec: ModelSpec) -> Conditions:
    """The conditioners of a tts model, from its file's tensors in float32.

    Raises:
        UnsupportedError: the conditions, or their combination, occur in no published model.
    """
    config: Mapping[str, Any] = {} if spec.lm is None else spec.lm.config
    if not config.get("conditioners"):
        return Conditions()
    check_conditions(config)
    tables = [
        _padding(weights, f"{PROVIDER}.{name}", config["dim"])[None]
        if (entry := chosen_entry(config, name)) is None
        else embed_choice(weights, config, name, entry)
        for name in config["fuser"].get("sum") or []
    ]
    constant = mx.stack(tables).sum(axis=0) if tables else None
    shape = SpeakerShape.of(spec)
    if shape is None:
        return Conditions(constant)
    name, dim = f"{PROVIDER}.{CONDITION}", config["dim"]
    projection = weights.matrix(f"{name}.output_proj", dim, shape.width)
    positions = mx.array(source_positions(config, shape.positions, dim))
    return Conditions(constant, projection, _padding(weights, name, dim), positions)


def embed_choice(weights: Weights, config: Mapping[str, Any], name: str, entry: int) -> mx.array:
    """Return one entry of a lookup conditioner's table as a vector ``[1, dim]``."""
    prefix, width = f"{PROVIDER}.{name}", config["conditioners"][name]["lut"]["dim"]
    chosen = weights.matrix(f"{prefix}.embed", None, width).rows(mx.array([entry]))
    if not weights.has(f"{prefix}.output_proj.weight"):
        return chosen
    return weights.matrix(f"{prefix}.output_proj", config["dim"], width).product(chosen)


def _padding(weights: Weights, prefix: str, dim: int) -> mx.array:
    """The learnt vector for the absence of a condition, or zeros."""
    name = f"{prefix}.learnt_padding"
    return weights.array(name, (1, 1, dim)).reshape(-1) if weights.has(name) else mx.zeros(dim)


Chooser: TypeAlias = Callable[[int, mx.array], mx.array]
"""Called with (step, logits ``[n, card]``), returns the tokens int32 ``[n]``."""

Past: TypeAlias = tuple[mx.array, mx.array]


class DepformerLayer:
    """One transformer layer of one depformer slice."""

    def __init__(self, config: DepformerConfig, width: int, weights: Weights, prefix: str) -> None:
        """Take the layer's weights."""
        dim, kv_dim = config.dim, config.kv_dim
        self._dims = (dim, kv_dim, config.head_dim)
        self.in_proj = weights.linear(f"{prefix}.self_attn.in_proj", dim, dim + 2 * kv_dim)
        self.out_proj = weights.linear(f"{prefix}.self_attn.out_proj", dim, dim)
        self.gating = load_feed_forward(config.gating, weights, f"{prefix}.gating", dim, width)
        self.norm1, self.norm2 = (load_norm(config.norm, weights, f"{prefix}.norm{i}", dim) for i in (1, 2))
        self.scale_1, self.scale_2 = load_layer_scales(weights, prefix, dim, wanted=config.layer_scale)

    def __call__(self, x: mx.array, past: Past | None) -> tuple[mx.array, Past]:
        """Map ``[n, 1, dim]`` and the keys and values of the steps before, to the same with one more."""
        q, k, v = (part.swapaxes(1, 2) for part in split_projection(self.in_proj(self.norm1(x)), self._dims))
        if past is not None:
            k, v = mx.concatenate([past[0], k], axis=2), mx.concatenate([past[1], v], axis=2)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=self._dims[2] ** -0.5)
        x = x + scaled(merge_heads(out, self.out_proj), self.scale_1)
        return x + scaled(self.gating(self.norm2(x)), self.scale_2), (k, v)


class DepformerSlice:
    """The part of a depformer that computes one step: from the main transformer's output and the previous
    token to logits.
    """

    def __init__(self, config: DepformerConfig, step: int, weights: Weights, prefix: str) -> None:
        """Take the slice's weights."""
        dim, entries = config.dim, (config.text_card if step == 0 else config.card) + 1
        self.linear_in = weights.linear(f"{prefix}.linear_in", config.hidden_dim, dim)
        demux = config.demux and step == 0
        self.emb = load_embedding(weights, f"{prefix}.emb", entries, dim, config.low_rank, demux=demux)
        width = config.feed_forward[config.schedule[step]]
        self.layers = [
            DepformerLayer(config, width, weights, f"{prefix}.transformer.layers.{i}")
            for i in range(config.layers)
        ]
        self.norm = None
        if config.output_norm is not None:
            self.norm = load_norm(config.output_norm, weights, f"{prefix}.norm", dim)
        self.linear_out = weights.linear(f"{prefix}.linear_out", dim, config.card, bias=config.bias)

    def __call__(self, hidden: mx.array, token: mx.array, pasts: list[Past]) -> tuple[mx.array, list[Past]]:
        """Map hidden ``[n, 1, hidden_dim]``, token int32 ``[n]`` and earlier steps, to logits ``[n, card]``.

        ``pasts`` has each layer's keys and values; it is empty in the first step.
        """
        x = self.linear_in(hidden) + self.emb(token)[:, None]
        seen: list[Past] = []
        for index, layer in enumerate(self.layers):
            x, past = layer(x, pasts[index] if pasts else None)
            seen.append(past)
        return self.linear_out(x if self.norm is None else self.norm(x))[:, 0], seen


Slice: TypeAlias = Callable[[mx.array, mx.array, list[Past]], tuple[mx.array, list[Past]]]


class Depformer:
    """Generates ``steps`` audio tokens from the main transformer's output and the text token."""

    def __init__(self, config: DepformerConfig, weights: Weights, prefix: str) -> None:
        """Take the weights."""
        self.config = config
        self.slices: list[Slice] = [
            DepformerSlice(config, step, weights, f"{prefix}.{step}") for step in range(config.steps)
        ]

    def compile(self) -> None:
        """Have mlx fuse each slice's operations, from its next call on."""
        self.slices = [mx.compile(piece) for piece in self.slices]

    def __call__(self, hidden: mx.array, text_tokens: mx.array, choose: Chooser) -> mx.array:
        """Map hidden ``[n, 1, hidden_dim]`` and text tokens int32 ``[n]`` to audio tokens int32 ``[n,
        steps]``.

        ``choose`` samples each step's logits, in their dtype.
        """
        pasts: list[Past] = []
        chosen = [text_tokens]
        for step, piece in enumerate(self.slices):
            logits, pasts = piece(hidden, chosen[-1], pasts)
            chosen.append(choose(step, logits))
        return mx.stack(chosen[1:], axis=1)


class LanguageModel:
    """A Moshi-family model from published arguments, generating the first ``steps`` audio streams.

    ``steps`` may be lower than ``dep_q``: PersonaPlex's weights contain steps without audible output, which
    this class neither loads nor runs. ``condition [1, dim]``, if given, is added to every input.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        steps: int,
        weights: Weights,
        int8_kv: bool = False,
        cross_positions: int = 0,
    ) -> None:
        """Take the weights."""
        shape = LanguageConfig.from_published(config, steps, cross_positions)
        dim, temporal = shape.dim, shape.transformer
        self.steps, self.dtype, self.int8_kv = steps, weights.dtype, int8_kv
        self.audio_emb = StreamEmbeddings(weights, AUDIO_EMBEDDINGS, shape.streams, shape.card + 1, dim)
        self.text_emb = load_embedding(weights, "text_emb", shape.text_card + 1, dim, demux=shape.demux)
        self.transformer = StreamingTransformer("lm", temporal, weights, "transformer", int8_kv=int8_kv)
        self.out_norm = load_norm(temporal.norm, weights, "out_norm", dim)
        self.text_linear = weights.linear("text_linear", dim, shape.text_out, bias=shape.bias)
        self.extra_heads = [
            weights.linear(f"extra_heads.{i}", dim, shape.pause_width) for i in range(shape.pause_heads)
        ]
        self.depformer = None if shape.depformer is None else Depformer(shape.depformer, weights, SLICES)
        self.condition: mx.array | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the temporal transformer; the depformer keeps none."""
        yield from self.transformer.specs()

    def compile(self) -> None:
        """Have mlx fuse the layers, from the next call on."""
        self.transformer.compile()
        if self.depformer is not None:
            self.depformer.compile()

    def __call__(self, tokens: mx.array, step: Step) -> tuple[mx.array, mx.array]:
        """Map tokens int32 ``[n, 1 + n_q]``, text first, to hidden ``[n, 1, dim]``, logits ``[n,
        text_card]``.
        """
        hidden = self.out_norm(self.read(self.embed(tokens)[:, None], step))
        return hidden, self.text_linear(hidden)[:, 0]

    def embed(self, tokens: mx.array) -> mx.array:
        """Embed tokens int32 ``[n, 1 + n_q]`` as the transformer's inputs ``[n, dim]``."""
        return self.audio_emb(tokens[:, 1:]) + self.text_emb(tokens[:, 0])

    def read(self, inputs: mx.array, step: Step) -> mx.array:
        """Process inputs ``[n, T, dim]`` with the transformer only, for steps without sampling."""
        return self.transformer(inputs if self.condition is None else inputs + self.condition, step)

    def pause_heads(self, hidden: mx.array) -> mx.array:
        """Probabilities of the extra heads: hidden ``[n, 1, dim]`` to float32 ``[n, heads, width]``."""
        heads = [mx.softmax(head(hidden[:, 0]).astype(mx.float32), axis=-1) for head in self.extra_heads]
        return mx.stack(heads, axis=1)


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
    """Load a published language model, with upstream's corrections, to compute in ``dtype``.

    Matrices that the file quantises in groups remain so; their scales become ``dtype``.

    Raises:
        CheckpointFormatError: tensors are missing or unknown, or differ in shape from the configuration.
        UnsupportedError: an option, or a kind of quantisation, that this backend does not run.
    """
    published = load_arrays(path)
    rounded = [name for name, array in published.items() if array.dtype == mx.int8]
    if rounded:
        raise UnsupportedError(
            f"{path} is INT8 with a scale for each row, in {len(rounded)} of its {len(published)} "
            f"tensors, and made for torch; use the original, or: {antiphon_command('quantize --target mlx')}"
        )
    sources = find_sources(read_header(path), config, steps)
    weights = Weights({name: cut(published[s.name], s) for name, s in sources.items()}, str(path), dtype)
    model = LanguageModel(
        config, steps=steps, weights=weights, int8_kv=int8_kv, cross_positions=cross_positions
    )
    if family == "hibiki":
        # As upstream: padding replaces an end of text that is sampled too early.
        model.text_emb = replace(model.text_emb, table=model.text_emb.table.with_row(2, 3))
    entry = description_entry(config, family)
    if entry is not None:
        model.condition = embed_choice(weights, config, "description", entry).astype(dtype)
    weights.finish(ignored=(_CONDITIONS,))
    return model


def cut(whole: mx.array, source: Source) -> mx.array:
    """The part of a file's tensor ``whole`` that ``source`` names."""
    if source.is_flat:
        return whole.reshape(-1)
    if source.parts == 1:
        return whole
    return whole.reshape(source.parts, -1, *whole.shape[1:])[source.part]

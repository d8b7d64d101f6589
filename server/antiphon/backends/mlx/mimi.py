"""Mimi, the streaming codec: one frame of PCM to codes and back.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.3. Its encoder
and decoder are SEANet: Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the
causal form of Défossez et al. 2022 and 2024. Mimi's files have PyTorch's layout, ``[out, in, kernel]``, also
those for mlx; the names here equal theirs with ``.conv.conv`` shortened. Arrays have mlx's layout, ``[n,
positions, channels]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from antiphon.backends.mlx.layers import Weights, load_arrays
from antiphon.backends.mlx.state import Layer, Packed, Step, fused
from antiphon.backends.mlx.transformer import StreamingTransformer
from antiphon.backends.snapshots import TensorSpec
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import ConvShape, MimiConfig, SeanetConfig, SeanetLayer
from antiphon.models.weights import USAGE_FLOOR, find_codebooks, is_projection, own_names


class CausalConv1d:
    """Causal convolution. State ``{name}.past`` ``[kernel - stride, inputs]``: the last inputs.

    With ``replicate`` copies of a row's first input precede its first frame, instead of zeros, and
    ``{name}.started`` is set after that frame.
    """

    def __init__(
        self, name: str, shape: ConvShape, weights: Weights, prefix: str, *, replicate: bool = False
    ) -> None:
        """Take the layer's weights."""
        self.name, self.shape, self.replicate = name, shape, replicate
        self.past_positions = (shape.kernel - 1) * shape.dilation + 1 - shape.stride
        published = weights.array(f"{prefix}.weight", (shape.outputs, shape.inputs, shape.kernel))
        self.weight = mx.contiguous(published.swapaxes(1, 2))
        self.bias = weights.array(f"{prefix}.bias", (shape.outputs,)) if shape.bias else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.past_positions, self.shape.inputs), self.weight.dtype)
        if self.replicate:
            yield TensorSpec(f"{self.name}.started", (), mx.bool_)

    def _with_past(self, x: mx.array, step: Packed) -> mx.array:
        past = step.read(f"{self.name}.past")
        if self.replicate:
            started = step.read(f"{self.name}.started")
            past = mx.where(started[:, None, None], past, x[:, :1])
            step.write(f"{self.name}.started", mx.ones_like(started))
        joined = mx.concatenate([past, x], axis=1)
        step.write(f"{self.name}.past", joined[:, -self.past_positions :])
        return joined

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """Map ``[n, T, inputs]`` to ``[n, T / stride, outputs]``; T is a multiple of the stride."""
        if self.past_positions:
            x = self._with_past(x, step)
        out = mx.conv1d(x, self.weight, self.shape.stride, 0, self.shape.dilation)
        return out if self.bias is None else out + self.bias


class CausalConvTranspose1d:
    """Transposed convolution whose kernel is twice its stride: a product, then an overlap-add of blocks.

    State ``{name}.tail`` ``[stride, outputs]``: the overlap with the next frame, without bias. With
    ``depthwise`` each channel has its own kernel and no other input.
    """

    def __init__(
        self, name: str, shape: ConvShape, weights: Weights, prefix: str, *, depthwise: bool = False
    ) -> None:
        """Take the layer's weights.

        Raises:
            UnsupportedError: another kernel, which no published Mimi has.
        """
        if shape.kernel != 2 * shape.stride:
            raise UnsupportedError(
                f"{prefix} has a kernel of {shape.kernel} over a stride of {shape.stride}; "
                "only twice the stride can be run"
            )
        self.name, self.shape, self.depthwise = name, shape, depthwise
        width = 1 if depthwise else shape.outputs
        published = weights.array(f"{prefix}.weight", (shape.inputs, width, shape.kernel))
        if depthwise:
            self.weight = mx.contiguous(published[:, 0].T)  # [kernel, channels]
        else:
            self.weight = mx.contiguous(published.swapaxes(1, 2).reshape(shape.inputs, -1))
        self.bias = weights.array(f"{prefix}.bias", (shape.outputs,)) if shape.bias else None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield TensorSpec(f"{self.name}.tail", (self.shape.stride, self.shape.outputs), self.weight.dtype)

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """Map ``[n, T, inputs]`` to ``[n, T * stride, outputs]``."""
        rows, count, _ = x.shape
        spread = x[:, :, None] * self.weight if self.depthwise else x @ self.weight
        blocks = spread.reshape(rows, count, 2, self.shape.stride, self.shape.outputs)
        owed = mx.concatenate([step.read(f"{self.name}.tail")[:, None], blocks[:, :, 1]], axis=1)
        step.write(f"{self.name}.tail", owed[:, -1])
        out = (blocks[:, :, 0] + owed[:, :-1]).reshape(rows, count * self.shape.stride, -1)
        return out if self.bias is None else out + self.bias


class Seanet:
    """Mimi's convolutional "encoder" (``[n, frame_samples, 1]`` to ``[n, positions, dimension]``) or
    "decoder" (the reverse).
    """

    def __init__(self, name: str, config: SeanetConfig, weights: Weights) -> None:
        """Take the weights."""
        self._name, self._alpha, self._weights = name, config.alpha, weights
        self._convolutions: list[CausalConv1d | CausalConvTranspose1d] = []
        layers = config.encoder() if name == "encoder" else config.decoder()
        self._layers = [self._make(str(place), layer) for place, layer in enumerate(layers)]

    def specs(self) -> Iterator[TensorSpec]:
        """The state of every convolution."""
        for convolution in self._convolutions:
            yield from convolution.specs()

    def __call__(self, x: mx.array, step: Packed) -> mx.array:
        """``[n, positions, channels]`` through every layer."""
        for layer in self._layers:
            x = layer(x, step)
        return x

    def _make(self, place: str, shape: SeanetLayer) -> Layer:
        if shape is None:
            return self._elu
        if isinstance(shape, ConvShape):
            return self._conv(place, shape)
        first = self._conv(f"{place}.block.1", shape.first)
        second = self._conv(f"{place}.block.3", shape.second)

        def block(x: mx.array, step: Packed) -> mx.array:
            return x + second(self._elu(first(self._elu(x, step), step), step), step)

        return block

    def _conv(self, place: str, shape: ConvShape) -> Layer:
        kind = CausalConvTranspose1d if shape.is_transposed else CausalConv1d
        name = f"{self._name}.{place}"
        convolution = kind(name, shape, self._weights, f"{self._name}.model.{place}")
        self._convolutions.append(convolution)
        return convolution

    def _elu(self, x: mx.array, step: Packed) -> mx.array:  # noqa: ARG002  (a layer like the others)
        return mx.where(x > 0, x, self._alpha * mx.expm1(x))


class ResidualQuantizer:
    """A chain of codebooks ``tables [levels, cardinality, width]`` between two projections.

    Each level selects the entry nearest to the remainder of the earlier levels (Zeghidour et al. 2021). The
    nearest entry maximises ``x . e - |e|^2 / 2``; equal scores take the lowest index.
    """

    def __init__(self, weights: Weights, prefix: str, shape: tuple[int, int, int], dimension: int) -> None:
        """Take the weights; ``shape`` is that of the tables."""
        levels, cardinality, width = shape
        self.levels = levels
        self.input_proj = weights.linear(f"{prefix}.input_proj", dimension, width)
        self.output_proj = weights.linear(f"{prefix}.output_proj", width, dimension)
        self.tables = [weights.array(f"{prefix}.tables.{i}", (cardinality, width)) for i in range(levels)]
        self.half_norms = [mx.square(table).sum(-1) / 2 for table in self.tables]

    def encode(self, x: mx.array) -> mx.array:
        """Map latents ``[n, dimension]`` to codes int32 ``[n, levels]``."""
        rest, codes = self.input_proj(x), []
        for table, half_norm in zip(self.tables, self.half_norms, strict=True):
            code = mx.argmax(rest @ table.T - half_norm, axis=-1)
            rest = rest - table[code]
            codes.append(code.astype(mx.int32))
        return mx.stack(codes, axis=-1) if codes else mx.zeros((x.shape[0], 0), dtype=mx.int32)

    def decode(self, codes: mx.array) -> mx.array:
        """Map codes ``[n, L]`` of the first L levels to latents ``[n, dimension]``."""
        entries = [self.tables[level][codes[:, level]] for level in range(codes.shape[1])]
        return self.output_proj(mx.stack(entries).sum(axis=0))


class SplitQuantizer:
    """Two quantizers of the same latent, ``rvq_first`` (semantic) and ``rvq_rest`` (acoustic): the sum of
    their decoded latents is the result.
    """

    def __init__(
        self, weights: Weights, codebooks: int, semantic: int, shape: tuple[int, int], dimension: int
    ) -> None:
        """Take the weights; ``shape`` is that of one table: cardinality, width."""
        self.semantic = semantic
        self.rvq_first = ResidualQuantizer(weights, "quantizer.rvq_first", (semantic, *shape), dimension)
        rest = (codebooks - semantic, *shape)
        self.rvq_rest = ResidualQuantizer(weights, "quantizer.rvq_rest", rest, dimension)

    def encode(self, x: mx.array) -> mx.array:
        """Map latents ``[n, dimension]`` to codes int32 ``[n, codebooks]``."""
        return mx.concatenate([self.rvq_first.encode(x), self.rvq_rest.encode(x)], axis=1)

    def decode(self, codes: mx.array) -> mx.array:
        """Map codes ``[n, L]`` of the first L codebooks to latents ``[n, dimension]``."""
        out = self.rvq_first.decode(codes[:, : self.semantic])
        if codes.shape[1] > self.semantic:
            out = out + self.rvq_rest.decode(codes[:, self.semantic :])
        return out


class Mimi:
    """Mimi with its first ``codebooks`` codebooks. Its state names begin with ``encoder`` or ``decoder``."""

    def __init__(self, config: Mapping[str, Any], codebooks: int, weights: Weights) -> None:
        """Take the weights."""
        shape = MimiConfig.from_published(config)
        self.codebooks, self.frame_samples = codebooks, shape.frame_samples
        self.encoder, self.decoder = (Seanet(name, shape.seanet, weights) for name in ("encoder", "decoder"))
        self.encoder_transformer, self.decoder_transformer = (
            StreamingTransformer(name, shape.transformer, weights, name)
            for name in ("encoder_transformer", "decoder_transformer")
        )
        tables, width = (shape.cardinality, shape.code_width), shape.seanet.dimension
        self.quantizer = SplitQuantizer(weights, codebooks, shape.semantic, tables, width)
        down, up = (shape.resampling(is_transposed=back) for back in (False, True))
        self.downsample = CausalConv1d("encoder.downsample", down, weights, "downsample", replicate=True)
        self.upsample = CausalConvTranspose1d("decoder.upsample", up, weights, "upsample", depthwise=True)

        self._analyse: Layer = self.encoder
        self._to_codes: Layer = self._quantize
        self._to_latents: Layer = self._look_up
        self._synthesise: Layer = self.decoder

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the codec."""
        for part in (
            self.encoder,
            self.decoder,
            self.encoder_transformer,
            self.decoder_transformer,
            self.downsample,
            self.upsample,
        ):
            yield from part.specs()

    def compile(self) -> None:
        """Have mlx fuse operations, from the next call on."""
        parts = (self.encoder, self.encoder.specs()), (self.decoder, self.decoder.specs())
        self._analyse, self._synthesise = (fused(layer, specs) for layer, specs in parts)
        self._to_codes = fused(self._to_codes, self.downsample.specs())
        self._to_latents = fused(self._to_latents, self.upsample.specs())
        for transformer in (self.encoder_transformer, self.decoder_transformer):
            transformer.compile()

    def encode(self, pcm: mx.array, step: Step) -> mx.array:
        """Map PCM float32 ``[n, frame_samples]`` to codes int32 ``[n, codebooks]``."""
        x = self.encoder_transformer(self._analyse(pcm[:, :, None], step), step)
        return self._to_codes(x, step)

    def decode(self, codes: mx.array, step: Step) -> mx.array:
        """Map codes int32 ``[n, codebooks]`` to PCM float32 ``[n, frame_samples]``."""
        x = self.decoder_transformer(self._to_latents(codes, step), step)
        return self._synthesise(x, step)[:, :, 0]

    def _quantize(self, x: mx.array, step: Packed) -> mx.array:
        return self.quantizer.encode(self.downsample(x, step)[:, 0])

    def _look_up(self, codes: mx.array, step: Packed) -> mx.array:
        return self.upsample(self.quantizer.decode(codes)[:, None], step)


def load_mimi(path: Path, config: Mapping[str, Any], codebooks: int) -> Mimi:
    """Load a published Mimi file for its first ``codebooks`` levels, in float32.

    Raises:
        CheckpointFormatError: tensors are missing or unknown, or differ in shape from the configuration.
    """
    weights = Weights(mimi_arrays(load_arrays(path)), str(path), mx.float32)
    mimi = Mimi(config, codebooks, weights)
    weights.finish(ignored=("quantizer.",))  # unused levels
    return mimi


def mimi_arrays(published: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Rename a published Mimi's tensors and turn its codebook averages into tables."""
    renamed: dict[str, mx.array] = {}
    for name, own in own_names(published, "gating").items():
        array = published[name]
        renamed[own] = array.reshape(array.shape[:2]) if is_projection(name) else array
    for book in find_codebooks(published):
        # Widened first: a table is computed in float32 from averages of any dtype.
        total, usage = (published[part].astype(mx.float32) for part in (book.total, book.usage))
        renamed[f"quantizer.{book.part}.tables.{book.level}"] = (
            total / mx.maximum(usage, USAGE_FLOOR)[:, None]
        )
    return renamed

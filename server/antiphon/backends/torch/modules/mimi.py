"""Mimi, the streaming codec: PCM to codes and back, one frame or several at a time.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.3. Its encoder
and decoder are SEANet: Tagliasacchi et al. 2020, "SEANet: a multi-modal speech enhancement network", in the
causal form of Défossez et al. 2022 and 2024. Parameter names are those of the published Mimi files, with
``.conv.conv`` shortened (:mod:`antiphon.backends.torch.weights`).

Layout is ``[n, channels, positions]``. A convolution of few positions runs as a matrix product, whose time is
that of reading the weight. A long one uses the library's convolution, which is then faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.layers import Linear, pack_linears
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import Step
from antiphon.models.architecture import ConvShape, MimiConfig, ResidualShape, SeanetConfig, SeanetLayer

SHORT_POSITIONS = 16
"""Maximum number of output positions per frame for which a convolution runs as a matrix product (measured on
a CPU).
"""


def _dtype(layer: CausalConv1d | CausalConvTranspose1d) -> torch.dtype:
    return layer.weight.dtype if layer.linear is None else layer.linear.weight.dtype


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


class StreamingConv(nn.Module):
    """A convolution with state: the part of this frame that the next frame needs."""

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Finish loading: compute values derived from the weights."""


class CausalConv1d(StreamingConv):
    """Causal convolution. State ``{name}.past``: the last ``kernel - stride`` inputs.

    With ``replicate`` copies of a row's first input precede its first frame, instead of zeros, and
    ``{name}.started`` is set after that frame.
    """

    bias: Tensor | None

    def __init__(
        self,
        name: str,
        shape: ConvShape,
        *,
        positions: int,
        replicate: bool = False,
    ) -> None:
        """Make the layer for frames of ``positions``, without weights, which are loaded later."""
        super().__init__()
        kernel, stride, dilation = shape.kernel, shape.stride, shape.dilation
        self.name, self.stride, self.dilation, self.replicate = name, stride, dilation, replicate
        self.in_channels, self.kernel = shape.inputs, kernel
        self.past_positions = (kernel - 1) * dilation + 1 - stride
        self.weight = _parameter(shape.outputs, shape.inputs, kernel)
        self.bias = _parameter(shape.outputs) if shape.bias else None
        self.positions, self.is_whole = positions // stride, dilation == 1 and kernel % stride == 0
        self.is_short = self.positions <= SHORT_POSITIONS and self.is_whole
        self.linear: Linear | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.in_channels, self.past_positions), _dtype(self))
        if self.replicate:
            yield TensorSpec(f"{self.name}.started", (), torch.bool)

    def prepare(self) -> None:
        """Finish loading: convert a short convolution to a linear layer over windows.

        A long convolution of several taps gets a second axis with one position. The sums are the same, and
        ONNX Runtime has a faster layout for them (decision 0010).
        """
        if self.is_short and self.linear is None:
            out_channels = self.weight.shape[0]
            self.linear = Linear(
                self.in_channels * self.kernel,
                out_channels,
                bias=self.bias is not None,
                dtype=self.weight.dtype,
            )
            taps_first = self.weight.data.transpose(1, 2).reshape(out_channels, -1)
            self.linear.weight = nn.Parameter(taps_first, requires_grad=False)
            self.linear.bias = self.bias
            del self.weight
        if self.linear is None and self.kernel > 1 and self.weight.dim() == 3:
            self.weight = nn.Parameter(self.weight.data[:, :, None], requires_grad=False)

    def _with_past(self, x: Tensor, step: Step) -> Tensor:
        if not self.replicate:
            return step.extend(f"{self.name}.past", x)
        past, started = step.read(f"{self.name}.past"), step.read(f"{self.name}.started")
        past = torch.where(started.view(-1, 1, 1), past, x[..., :1])
        step.write(f"{self.name}.started", torch.ones_like(started))
        joined = torch.cat([past, x], dim=-1)
        step.write(f"{self.name}.past", joined[..., -self.past_positions :])
        return joined

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, in_channels, T]`` to ``[n, out_channels, T / stride]``; T is a multiple of the stride."""
        if self.past_positions:
            x = self._with_past(x, step)
        if self.linear is not None:
            out: Tensor = self.linear(self._windows(x)).transpose(1, 2)
            return out
        if self.weight.dim() == 3:
            return functional.conv1d(x, self.weight, self.bias, stride=self.stride, dilation=self.dilation)
        stride, dilation = (1, self.stride), (1, self.dilation)
        wide = functional.conv2d(x[:, :, None], self.weight, self.bias, stride=stride, dilation=dilation)
        return wide[:, :, 0]

    def _windows(self, x: Tensor) -> Tensor:
        """``[n, positions, kernel * in_channels]``, by copying strides; a kernel has several."""
        strides = x.transpose(1, 2).reshape(x.shape[0], -1, self.stride * self.in_channels)
        parts = self.kernel // self.stride
        positions = strides.shape[1] - parts + 1
        return torch.cat([strides[:, part : part + positions] for part in range(parts)], dim=2)


class CausalConvTranspose1d(StreamingConv):
    """Transposed convolution. State ``{name}.tail``: the overlap with the next frame, without bias."""

    bias: Tensor | None

    def __init__(
        self,
        name: str,
        shape: ConvShape,
        *,
        positions: int,
        depthwise: bool = False,
    ) -> None:
        """Make the layer for frames of ``positions``; ``depthwise``: each channel separately."""
        super().__init__()
        kernel, stride, groups = shape.kernel, shape.stride, shape.inputs if depthwise else 1
        self.name, self.kernel, self.stride, self.groups = name, kernel, stride, groups
        self.in_channels, self.out_channels = shape.inputs, shape.outputs
        self.tail_positions = kernel - stride
        self.weight = _parameter(shape.inputs, shape.outputs // groups, kernel)
        self.bias = _parameter(shape.outputs) if shape.bias else None
        self.positions, self.is_whole = positions, groups == 1 and kernel == 2 * stride
        self.is_short = positions <= SHORT_POSITIONS and self.is_whole
        self.linear: Linear | None = None

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        if self.tail_positions:
            yield TensorSpec(f"{self.name}.tail", (self.out_channels, self.tail_positions), _dtype(self))

    def prepare(self) -> None:
        """Finish loading: convert a short transposed convolution to a linear layer and an overlap-add."""
        if self.is_short and self.linear is None:
            self.linear = Linear(self.in_channels, self.out_channels * self.kernel, dtype=self.weight.dtype)
            self.linear.weight = nn.Parameter(
                self.weight.data.flatten(1).t().contiguous(), requires_grad=False
            )
            del self.weight

    def spread(self, x: Tensor) -> Tensor:
        """Overlap-add without the bias: ``[n, in, T]`` to ``[n, out, T * stride + tail]``."""
        if x.shape[-1] == 1 and self.groups == self.in_channels == self.out_channels:
            return x * self.weight[:, 0]  # ONNX Runtime treats it as a convolution of many groups
        if self.linear is None:
            return functional.conv_transpose1d(x, self.weight, stride=self.stride, groups=self.groups)
        blocks = self.linear(x.transpose(1, 2)).view(*x.shape[::2], self.out_channels, 2, self.stride)
        first, second = blocks.permute(3, 0, 2, 1, 4).flatten(3)
        pad = self.stride
        return functional.pad(first, (0, pad)) + functional.pad(second, (pad, 0))

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, in_channels, T]`` to ``[n, out_channels, T * stride]``."""
        out = self.spread(x)
        if self.tail_positions:
            tail = step.read(f"{self.name}.tail")
            end = out.shape[-1] - self.tail_positions
            head = out[..., : self.tail_positions] + tail
            joined = torch.cat([head, out[..., self.tail_positions :]], dim=-1)
            step.write(f"{self.name}.tail", joined[..., end:])
            out = joined[..., :end]
        return out if self.bias is None else out + self.bias.view(-1, 1)


class ResidualBlock(nn.Module):
    """A residual block: ``x + conv1(elu(conv3(elu(x))))``, with fewer channels between the convolutions."""

    def __init__(self, name: str, shape: ResidualShape, alpha: float, positions: int) -> None:
        """Make the block without weights, which are loaded later."""
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(alpha),
            CausalConv1d(f"{name}.block.1", shape.first, positions=positions),
            nn.ELU(alpha),
            CausalConv1d(f"{name}.block.3", shape.second, positions=positions),
        )

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Return ``x [n, channels, T]`` plus the block's output."""
        return x + _run(self.block, x, step)


def _run(layers: nn.Sequential, x: Tensor, step: Step) -> Tensor:
    for layer in layers:
        x = layer(x) if isinstance(layer, nn.ELU) else layer(x, step)
    return x


class Seanet(nn.Module):
    """Mimi's convolutional "encoder" (``[n, 1, frame_samples]`` to ``[n, dimension, positions]``) or
    "decoder" (the reverse).
    """

    def __init__(self, name: str, config: SeanetConfig, positions: int) -> None:
        """Make the network for frames of ``positions``, without weights, which are loaded later."""
        super().__init__()
        self._positions, self._alpha = positions, config.alpha
        layers = config.encoder() if name == "encoder" else config.decoder()
        made = [self._make(f"{name}.{place}", layer) for place, layer in enumerate(layers)]
        self.model = nn.Sequential(*made)

    def _make(self, name: str, shape: SeanetLayer) -> nn.Module:
        positions = self._positions
        if shape is None:
            return nn.ELU(self._alpha)
        if isinstance(shape, ResidualShape):
            return ResidualBlock(name, shape, self._alpha, positions)
        if shape.is_transposed:
            self._positions = positions * shape.stride
            return CausalConvTranspose1d(name, shape, positions=positions)
        self._positions = positions // shape.stride
        return CausalConv1d(name, shape, positions=positions)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Encode PCM ``[n, 1, frame_samples]`` or decode latents ``[n, dimension, positions]``, depending on
        the name.
        """
        return _run(self.model, x, step)


class ResidualQuantizer(nn.Module):
    """A chain of codebooks ``tables [levels, cardinality, width]`` between two projections.

    Each level selects the entry nearest to the remainder of the earlier levels (Zeghidour et al. 2021). The
    nearest entry maximises ``x . e - |e|^2 / 2``; equal scores take the lowest index.
    """

    def __init__(self, levels: int, cardinality: int, width: int, dimension: int) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.levels = levels
        self.input_proj = Linear(dimension, width)
        self.output_proj = Linear(width, dimension)
        self.tables = nn.Parameter(torch.empty(levels, cardinality, width), requires_grad=False)
        self.score_biases = nn.Parameter(torch.empty(levels, cardinality), requires_grad=False)

    def prepare(self) -> None:
        """Finish loading: compute the values that the search needs from the tables."""
        self.score_biases = nn.Parameter(self.tables.square().sum(-1) / -2, requires_grad=False)

    def encode(self, x: Tensor) -> Tensor:
        """Map latents ``[n, T, dimension]`` to codes int64 ``[n, levels, T]``."""
        rest = self.input_proj(x).flatten(0, 1)
        codes = []
        for level in range(self.levels):
            scores = functional.linear(rest, self.tables[level], self.score_biases[level])
            codes.append(scores.argmax(dim=-1))
            if level < self.levels - 1:
                rest = rest - functional.embedding(codes[-1], self.tables[level])
        return torch.stack(codes, dim=-1).view(*x.shape[:2], -1).transpose(1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Map codes int64 ``[n, L, T]`` of the first L levels to latents ``[n, T, dimension]``."""
        cardinality = self.tables.shape[1]
        first = torch.arange(codes.shape[1], device=codes.device).view(1, -1, 1) * cardinality
        entries = functional.embedding(codes + first, self.tables.flatten(0, 1))
        out: Tensor = self.output_proj(entries.sum(dim=1))
        return out


class SplitQuantizer(nn.Module):
    """Two quantizers of the same latent, ``rvq_first`` (semantic) and ``rvq_rest`` (acoustic): the sum of
    their decoded latents is the result.
    """

    def __init__(self, codebooks: int, semantic: int, cardinality: int, width: int, dimension: int) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.semantic = semantic
        self.rvq_first = ResidualQuantizer(semantic, cardinality, width, dimension)
        self.rvq_rest = ResidualQuantizer(codebooks - semantic, cardinality, width, dimension)

    def encode(self, x: Tensor) -> Tensor:
        """Map latents ``[n, T, dimension]`` to codes int64 ``[n, codebooks, T]``."""
        return torch.cat([self.rvq_first.encode(x), self.rvq_rest.encode(x)], dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Map codes int64 ``[n, L, T]`` of the first L codebooks to latents ``[n, T, dimension]``."""
        first = self.rvq_first.decode(codes[:, : self.semantic])
        return first + self.rvq_rest.decode(codes[:, self.semantic :])


class Mimi(nn.Module):
    """Mimi with its first ``codebooks`` codebooks. Its state names begin with ``encoder`` or ``decoder``.

    ``attention`` chooses the implementation of its transformers: see
    :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    """

    def __init__(self, config: Mapping[str, Any], codebooks: int, *, attention: str = "torch") -> None:
        """Make the codec without weights, which are loaded later."""
        super().__init__()
        shape, compute = MimiConfig.from_published(config), Compute(attention=attention)
        self.codebooks = codebooks
        self.frame_samples, self.frame_positions = shape.frame_samples, shape.frame_positions
        self.encoder = Seanet("encoder", shape.seanet, self.frame_samples)
        self.decoder = Seanet("decoder", shape.seanet, self.frame_positions)
        self.encoder_transformer, self.decoder_transformer = (
            StreamingTransformer(name, shape.transformer, compute)
            for name in ("encoder_transformer", "decoder_transformer")
        )
        width = shape.seanet.dimension
        self.quantizer = SplitQuantizer(codebooks, shape.semantic, shape.cardinality, shape.code_width, width)
        self.downsample = CausalConv1d(
            "encoder.downsample",
            shape.resampling(is_transposed=False),
            positions=self.frame_positions,
            replicate=True,
        )
        self.upsample = CausalConvTranspose1d(
            "decoder.upsample", shape.resampling(is_transposed=True), positions=1, depthwise=True
        )

    def prepare(self, *, pack: bool = False) -> Mimi:
        """Finish loading: compute values derived from the weights; ``pack`` the linears for a CPU."""
        for child in self.modules():
            if isinstance(child, StreamingConv | ResidualQuantizer):
                child.prepare()
        if pack:
            pack_linears(self)
        return self.eval()

    def specs(self) -> Iterator[TensorSpec]:
        """Every state tensor of the codec."""
        for child in self.modules():
            if isinstance(child, StreamingConv | StreamingTransformer):
                yield from child.specs()

    def encode(self, pcm: Tensor, step: Step) -> Tensor:
        """Map PCM float32 ``[n, F * frame_samples]`` to codes int64 ``[n, codebooks, F]``."""
        x = self.encoder(pcm[:, None], step).transpose(1, 2)
        x = self.encoder_transformer(x, step)
        x = self.downsample(x.transpose(1, 2), step).transpose(1, 2)
        return self.quantizer.encode(x)

    def decode(self, codes: Tensor, step: Step) -> Tensor:
        """Map codes int64 ``[n, codebooks, F]`` to PCM float32 ``[n, F * frame_samples]``."""
        x = self.quantizer.decode(codes).transpose(1, 2)
        x = self.upsample(x, step).transpose(1, 2)
        x = self.decoder_transformer(x, step)
        out: Tensor = self.decoder(x.transpose(1, 2), step)[:, 0]
        return out

    def is_fused(self, device: torch.device) -> bool:
        """Whether its attention runs on Triton kernels on that device."""
        return self.encoder_transformer.is_fused(device)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.quantizer.rvq_first.tables.device

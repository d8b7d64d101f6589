"""Pocket-TTS's codec as stages of a tick: the sound of a latent, and the encoding of a voice.

Parameters have the published names, of ``mimi``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.attention import Look, SelfAttention, Window
from antiphon.backends.torch.modules.layers import Linear
from antiphon.backends.torch.modules.mimi import CausalConv1d, CausalConvTranspose1d, Seanet, StreamingConv
from antiphon.backends.torch.modules.transformer import StreamingTransformer, ring_positions
from antiphon.backends.torch.state import Run, Step
from antiphon.errors import UnsupportedError
from antiphon.models.architecture import ConvShape, SeanetConfig, TransformerConfig
from antiphon_quantize.onnx_modules import ExportedStage

NORM: Final = "layer_norm"


class WindowedTransformer(StreamingTransformer):
    """A codec's transformer, in which each position sees ``window`` positions, including itself.

    The ring has space for an additional frame, because a frame is written before its positions are computed.
    """

    def __init__(self, name: str, config: TransformerConfig) -> None:
        """Create the network without weights, which are loaded later."""
        self.window = config.context
        super().__init__(name, replace(config, context=config.context + config.frame_positions))
        for number, layer in enumerate(self.layers):
            layer.self_attn = FrameAttention(f"{name}.{number}", self.config)
            layer.feed_forward = TanhFeedForward(config.dim, config.feed_forward)

    def _look(self, positions: Tensor, run: Run | None, *, wide: bool) -> Look:
        assert not wide
        capacity = self.config.context
        keys = ring_positions(positions[:, -1], capacity, capacity)[:, None]
        ahead = positions[:, :, None] - keys
        mask = (keys >= 0) & (ahead >= 0) & (ahead < self.window)
        return Look(run, mask[:, None], capacity)


class FrameAttention(SelfAttention):
    """Attention that processes all positions of a frame over the ring in one product."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step, window: Window) -> Tensor:
        self.ring.write(step, window.slots, k, v)
        (look,) = window.looks
        keys, values = self.ring.read(step, look.run, look.length)
        scores = (q * (1 / math.sqrt(self.config.head_dim))) @ keys.transpose(2, 3)
        return (scores + torch.where(look.mask, 0.0, -math.inf)).softmax(dim=-1) @ values


class TanhFeedForward(nn.Module):
    """``linear2(gelu(linear1(x)))``, with the tanh approximation that the model was trained with."""

    def __init__(self, dim: int, hidden: int) -> None:
        """Create the layer without weights, which are loaded later."""
        super().__init__()
        self.linear1, self.linear2 = Linear(dim, hidden), Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        out: Tensor = self.linear2(functional.gelu(self.linear1(x), approximate="tanh"))
        return out


def codec_transformer(name: str, table: Mapping[str, Any], positions: int) -> WindowedTransformer:
    """A codec's transformer, from its table in a configuration.

    Raises:
        UnsupportedError: its inner width is larger than its outer one.
    """
    told = {"norm": NORM, "positional_embedding": "rope", "max_period": 10000.0}
    return WindowedTransformer(name, TransformerConfig.of_codec({**told, **table}, positions))


def prepare_half(stage: PcmStage | VoiceEncoderStage) -> None:
    """Finish loading one half of a codec: compute derived values, and set ``stage.specs``."""
    found: list[TensorSpec] = []
    for child in stage.modules():
        if isinstance(child, StreamingConv):
            child.prepare()
        if isinstance(child, StreamingConv | StreamingTransformer):
            found += child.specs()
    stage.specs = tuple(found)


class PcmStage(ExportedStage):
    """Maps a latent ``[n, width]`` to ``pcm`` float32 ``[n, samples]``."""

    inputs, outputs = ("latent",), ("pcm",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Create the decoder without weights, which are loaded later."""
        super().__init__([])
        seanet = SeanetConfig.from_published(config.get("decoder_seanet") or config["seanet"])
        positions, outer = frame_positions(config), config.get("outer_dim") or seanet.dimension
        if outer != seanet.dimension:
            raise UnsupportedError(f"outer_dim is {outer}, and the decoder takes {seanet.dimension}")
        self.width = config["quantizer"]["dimension"]
        self.latent_proj = Linear(self.width, outer, bias=True)
        shape = ConvShape(outer, outer, 2 * positions, positions, bias=False, is_transposed=True)
        self.upsample = CausalConvTranspose1d("decoder.upsample", shape, positions=1, depthwise=True)
        table = config.get("decoder_transformer") or config["transformer"]
        self.decoder_transformer = codec_transformer("decoder_transformer", table, positions)
        self.decoder = Seanet("decoder", seanet, positions)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        x = self.upsample(self.latent_proj(inputs[0])[:, :, None], step).transpose(1, 2)
        x = self.decoder_transformer(x, step).transpose(1, 2)
        return (self.decoder(x, step)[:, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.width),)


class VoiceEncoderStage(ExportedStage):
    """Maps PCM float32 ``[n, samples]`` to a latent of a voice, ``heard [n, width]``."""

    inputs, outputs = ("pcm",), ("heard",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Create the encoder without weights, which are loaded later."""
        super().__init__([])
        seanet, positions = SeanetConfig.from_published(config["seanet"]), frame_positions(config)
        self.samples = round(config["sample_rate"] / config["frame_rate"])
        self.encoder = Seanet("encoder", seanet, self.samples)
        self.encoder_transformer = codec_transformer("encoder_transformer", config["transformer"], positions)
        inner = config.get("inner_dim") or seanet.dimension
        shape = ConvShape(seanet.dimension, inner, 2 * positions, positions, bias=False)
        self.downsample = CausalConv1d("encoder.downsample", shape, positions=positions, replicate=True)

    def run(self, inputs: Sequence[Tensor], step: Step) -> tuple[Tensor, ...]:
        """See the base class."""
        x = self.encoder(inputs[0][:, None], step).transpose(1, 2)
        x = self.encoder_transformer(x, step).transpose(1, 2)
        return (self.downsample(x, step)[:, :, 0],)

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """See the base class."""
        return (torch.zeros(rows, self.samples),)


def frame_positions(config: Mapping[str, Any]) -> int:
    """The number of latents in a frame of a codec's transformers."""
    samples, ratios = round(config["sample_rate"] / config["frame_rate"]), config["seanet"]["ratios"]
    positions: int = samples // math.prod(ratios)
    return positions

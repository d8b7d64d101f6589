"""Mimi, the streaming codec: PCM to codes and back, one frame or several at a time.

Défossez et al. 2024, "Moshi: a speech-text foundation model for real-time dialogue", section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.backends.torch.modules.attention import Compute
from antiphon.backends.torch.modules.conv import CausalConv1d, CausalConvTranspose1d, StreamingConv
from antiphon.backends.torch.modules.linear import pack_linears
from antiphon.backends.torch.modules.quantizer import ResidualQuantizer, SplitQuantizer
from antiphon.backends.torch.modules.seanet import Seanet
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.models.codec_architecture import MimiConfig


class Mimi(nn.Module):
    """The codec for the first ``codebooks`` levels. Its state names begin with ``encoder`` or ``decoder``.

    ``attention`` is by what its transformers run: see :func:`antiphon.backends.torch.kernels.fused.is_fused`.
    """

    def __init__(self, config: Mapping[str, Any], codebooks: int, *, attention: str = "torch") -> None:
        """Shape the layer; its weights come with the checkpoint."""
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
        """After loading: derive what is computed from the weights; ``pack`` the linears for a CPU."""
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
        """PCM float32 ``[n, F * frame_samples]`` to codes int64 ``[n, codebooks, F]``."""
        x = self.encoder(pcm[:, None], step).transpose(1, 2)
        x = self.encoder_transformer(x, step)
        x = self.downsample(x.transpose(1, 2), step).transpose(1, 2)
        return self.quantizer.encode(x)

    def decode(self, codes: Tensor, step: Step) -> Tensor:
        """Codes int64 ``[n, codebooks, F]`` to PCM float32 ``[n, F * frame_samples]``."""
        x = self.quantizer.decode(codes).transpose(1, 2)
        x = self.upsample(x, step).transpose(1, 2)
        x = self.decoder_transformer(x, step)
        out: Tensor = self.decoder(x.transpose(1, 2), step)[:, 0]
        return out

    def is_fused(self, device: torch.device) -> bool:
        """Whether its attention runs by Triton kernels there."""
        return self.encoder_transformer.is_fused(device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.quantizer.rvq_first.tables.device

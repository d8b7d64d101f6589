"""A layer of the streaming transformer, by torch's own operations."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from antiphon.backends.torch.modules.attention import Compute, CrossAttention, SelfAttention, Window
from antiphon.backends.torch.modules.feedforward import make_feed_forward
from antiphon.backends.torch.modules.norms import LayerNorm, make_norm, make_scale
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import Step
from antiphon.models.architecture import TransformerConfig


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention where configured, feed-forward; each normed first and added."""

    def __init__(self, name: str, config: TransformerConfig, compute: Compute) -> None:
        """Shape the layer; its weights come with the checkpoint."""
        super().__init__()
        dim, dtype = config.dim, compute.dtype
        self.self_attn = SelfAttention(name, config, compute)
        self.norm1 = make_norm(config.norm, dim, dtype)
        self.norm2 = make_norm(config.norm, dim, dtype)
        self.feed_forward = make_feed_forward(config.gating, dim, config.feed_forward, dtype)
        self.cross_attention: CrossAttention | None = None
        if config.cross_positions:
            self.cross_attention = CrossAttention(name, config, compute)
            self.norm_cross = LayerNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
            self.layer_scale_cross = make_scale(dim, dtype, wanted=config.layer_scale)
        self.layer_scale_1 = make_scale(dim, dtype, wanted=config.layer_scale)
        self.layer_scale_2 = make_scale(dim, dtype, wanted=config.layer_scale)

    def specs(self) -> Iterator[TensorSpec]:
        """The state this layer keeps."""
        yield from self.self_attn.ring.specs()
        if self.cross_attention is not None:
            yield from self.cross_attention.specs()

    def forward(self, x: Tensor, step: Step, window: Window) -> Tensor:
        """``[n, T, dim]`` to the same."""
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x), step, window))
        if self.cross_attention is not None:
            x = x + self.layer_scale_cross(self.cross_attention(self.norm_cross(x), step))
        out: Tensor = x + self.layer_scale_2(self.feed_forward(self.norm2(x)))
        return out

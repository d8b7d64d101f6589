"""Layers without state: linears, norms, embeddings, feed-forward blocks, rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.errors import UnsupportedError
from antiphon.models.architecture import gated_hidden
from antiphon.models.delays import ZERO

PACKED_FOR_ROWS = 16
"""Rows of input for which the packed layout is chosen. Measured with 1 to 16 rows, this layout is the best or
within 2 % of the best; the layout for a single row takes up to 1.8 times as long.
"""


class Linear(nn.Module):
    """A linear layer: ``y = x W^T (+ b)`` with ``weight [out, in]``.

    On a CPU :meth:`pack` converts the weight to oneDNN's layout once. With few rows a product takes as long
    as reading the weight, and the packed layout is read more than twice as fast.
    """

    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, dtype: torch.dtype | None = None
    ) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), requires_grad=False)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False)
        else:
            self.bias = None
        self.packed: Tensor | None = None

    @classmethod
    def around(cls, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A linear layer with existing weights."""
        with torch.device("meta"):
            linear = cls(weight.shape[1], weight.shape[0], dtype=weight.dtype)
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = bias
        return linear

    def pack(self) -> None:
        """Convert the weight to oneDNN's layout. CPU only, irreversible; no effect if oneDNN has no such
        layout.
        """
        if self.weight.device.type != "cpu" or self.packed is not None or not can_pack(self.weight.dtype):
            return
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.data, PACKED_FOR_ROWS)
        self.weight = nn.Parameter(self.weight.data[:0], requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        if self.packed is None:
            return functional.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a layout for weights of this type on this CPU; without AVX-512 it has none for 16
    bits."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in supported or bool(supported[dtype]())


def weight_bytes(module: nn.Module) -> int:
    """Bytes of all weights of a module, packed ones included."""
    plain: int = sum(tensor.nbytes for tensor in module.state_dict().values())
    packed = [getattr(child, "packed", None) for child in module.modules()]
    return plain + sum(tensor.numel() * tensor.itemsize for tensor in packed if isinstance(tensor, Tensor))


def pack_linears(module: nn.Module) -> None:
    """Pack every linear of a module on a CPU. See :meth:`Linear.pack`."""
    for child in module.modules():
        if isinstance(child, Linear):
            child.pack()


class RMSNorm(nn.Module):
    """Computes ``x * alpha / sqrt(mean(x^2) + eps)``, in float32 if ``in_float32``.

    Zhang and Sennrich 2019. ``alpha`` is ``[1, 1, dim]`` as published.
    """

    def __init__(self, dim: int, *, eps: float, in_float32: bool, dtype: torch.dtype | None = None) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.eps, self.in_float32 = eps, in_float32
        self.alpha = nn.Parameter(torch.empty(1, 1, dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x [n, T, dim]``."""
        wide = x.float() if self.in_float32 else x
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * (self.alpha.to(wide.dtype) * scale)).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalisation with weight and bias; computed in float32 when ``in_float32``."""

    def __init__(self, dim: int, *, eps: float, in_float32: bool, dtype: torch.dtype | None = None) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.eps, self.in_float32 = eps, in_float32
        self.weight = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x [n, T, dim]``."""
        wide = x.float() if self.in_float32 else x
        weight, bias = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        return functional.layer_norm(wide, weight.shape, weight, bias, self.eps).to(x.dtype)


class LayerScale(nn.Module):
    """Multiplies each channel by a learnt number (Touvron et al. 2021)."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.scale = nn.Parameter(torch.empty(dim, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[n, T, dim]`` to the same shape."""
        return x * self.scale


def make_scale(dim: int, dtype: torch.dtype, *, wanted: bool) -> nn.Module:
    """A layer scale, or an identity if the configuration has none."""
    return LayerScale(dim, dtype) if wanted else nn.Identity()


def make_norm(kind: str, dim: int, dtype: torch.dtype | None = None) -> nn.Module:
    """The normalisation layer for ``kind``, the value of a configuration's ``norm``.

    Raises:
        UnsupportedError: no published model uses that name.
    """
    if kind == "layer_norm":
        return LayerNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
    if kind == "layer_norm_f32":
        return LayerNorm(dim, eps=1e-8, in_float32=True, dtype=dtype)
    if kind == "rms_norm":
        return RMSNorm(dim, eps=1e-5, in_float32=False, dtype=dtype)
    if kind == "rms_norm_f32":
        return RMSNorm(dim, eps=1e-8, in_float32=True, dtype=dtype)
    names = "layer_norm, layer_norm_f32, rms_norm, rms_norm_f32"
    raise UnsupportedError(f"norm is {kind!r}; it can be one of {names}")


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotary embedding of one forward pass: cosine and sine ``[n, 1, T, D / 2]`` float32."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def apply(self, x: Tensor) -> Tensor:
        """Apply the rotary embedding to ``x [n, H, T, D]``."""
        if self.interleaved:
            even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
        else:
            even, odd = x.float().chunk(2, dim=-1)
        turned = (even * self.cos - odd * self.sin, even * self.sin + odd * self.cos)
        if self.interleaved:
            return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
        return torch.cat(turned, dim=-1).to(x.dtype)


def rotation(positions: Tensor, head_dim: int, max_period: float, *, interleaved: bool) -> Rotation:
    """Compute the rotary embedding for int ``positions [n, T]``."""
    steps = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
    frequencies = torch.exp(steps * (-math.log(max_period) * 2 / head_dim))
    angles = frequencies * positions.float()[:, None, :, None]
    return Rotation(torch.cos(angles), torch.sin(angles), interleaved)


class TokenEmbedding(nn.Module):
    """One stream's table ``weight [entries, width]``, projected to ``dim`` if the width is lower.

    With ``demux`` a token combines two tokens: ``first + entries * (second + 1)``. Both use the table, each
    with its own projection (``out1``, ``out2``). A second token of -1 adds nothing (tts-1.6b's text of two
    voices).
    """

    def __init__(
        self, entries: int, dim: int, dtype: torch.dtype, *, low_rank: int | None = None, demux: bool = False
    ) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        width = low_rank or dim
        self.entries = entries
        self.weight = nn.Parameter(torch.empty(entries, width, dtype=dtype), requires_grad=False)
        self.low_rank = Linear(width, dim, dtype=dtype) if low_rank else None
        self.out1 = Linear(width, dim, dtype=dtype) if demux else None
        self.out2 = Linear(width, dim, dtype=dtype) if demux else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 ``[...]`` to ``[..., dim]``."""
        is_zero = (tokens == ZERO)[..., None]
        tokens = tokens.clamp(min=0)
        if self.out1 is not None and self.out2 is not None:
            second = torch.div(tokens, self.entries, rounding_mode="floor") - 1
            left = self.out1(functional.embedding(torch.remainder(tokens, self.entries), self.weight))
            right = self.out2(functional.embedding(second.clamp(min=0), self.weight))
            out: Tensor = left + right.masked_fill((second < 0)[..., None], 0)
            return out.masked_fill(is_zero, 0)
        out = functional.embedding(tokens, self.weight).masked_fill(is_zero, 0)
        return out if self.low_rank is None else self.low_rank(out)


class StreamEmbeddings(nn.Module):
    """The embedding tables of all audio streams in one tensor, ``weight [streams * entries, dim]``; the
    entries of a frame are added up.
    """

    def __init__(self, streams: int, entries: int, dim: int, dtype: torch.dtype) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.streams, self.entries = streams, entries
        self.weight = nn.Parameter(torch.empty(streams * entries, dim, dtype=dtype), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 ``[n, streams]`` to ``[n, dim]``."""
        first = torch.arange(self.streams, device=tokens.device) * self.entries
        entries = functional.embedding(tokens.clamp(min=0) + first, self.weight)
        return entries.masked_fill((tokens == ZERO)[..., None], 0).sum(dim=1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class PlainFeedForward(nn.Module):
    """A feed-forward block without gate: ``linear2(gelu(linear1(x)))``."""

    def __init__(self, dim: int, hidden: int, dtype: torch.dtype) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        self.linear1 = Linear(dim, hidden, dtype=dtype)
        self.linear2 = Linear(hidden, dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        out: Tensor = self.linear2(functional.gelu(self.linear1(x)))
        return out


class GatedFeedForward(nn.Module):
    """A gated feed-forward block (Shazeer 2020): ``linear_out(act(a) * b)``, with ``a, b`` the halves of
    ``linear_in(x)``.
    """

    def __init__(self, activation: str, dim: int, feed_forward: int, dtype: torch.dtype) -> None:
        """Make the layer without weights, which are loaded later."""
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnsupportedError(f"gating is {activation!r}; it can be none, {', '.join(ACTIVATIONS)}")
        self.activation = ACTIVATIONS[activation]
        hidden = gated_hidden(dim, feed_forward)
        self.linear_in = Linear(dim, 2 * hidden, dtype=dtype)
        self.linear_out = Linear(hidden, dim, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., dim]`` to the same shape."""
        gate, value = self.linear_in(x).chunk(2, dim=-1)
        out: Tensor = self.linear_out(self.activation(gate) * value)
        return out


def make_feed_forward(gating: str, dim: int, feed_forward: int, dtype: torch.dtype) -> nn.Module:
    """The feed-forward block for ``gating``, the value of a configuration."""
    if gating == "none":
        return PlainFeedForward(dim, feed_forward, dtype)
    return GatedFeedForward(gating, dim, feed_forward, dtype)

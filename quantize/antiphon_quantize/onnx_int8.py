"""INT8 attention and convolutions for exported graphs, and translations of torch operators to ONNX.

**Rings**: attention multiplies integers with the content of the ring. ONNX Runtime has a routine for one row
of bytes times a matrix of signed bytes, which reads the matrix in place. This routine supports no zero point,
and sums along the matrix's columns. Keys are therefore transposed (the width of a head by the slots), and
each slot stores the offset that a query's zero point adds to a score. No factor exceeds 127, because CPUs
without VNNI add two products in 16 bits.

**Convolutions** after an ELU are products over windows, positions first. The output of an ELU with an alpha
of at most 1 is never below -1; a convolution after an ELU with a larger alpha stays in float32. In an encoder
byte 0 represents -1, because then more codes equal the codes of float32. In a decoder bytes are symmetric, so
that quiet audio is rounded finely. Each window has its own scale, independent of other rows. Sums of integers
are exact, so a row's results do not depend on the number of rows. A transposed convolution whose kernel is
two strides is a product over windows of two positions, which gives all positions of a stride together: no
overlap-add is needed.

**Operators** are translated here if the exporter's translations are slow or inexact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import onnxscript
import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.backends.snapshots import TensorSpec
from antiphon.backends.torch.modules.attention import KVRing, SelfAttention, TransformerLayer, Window
from antiphon.backends.torch.modules.kv_forms import KVForm
from antiphon.backends.torch.modules.mimi import (
    CausalConv1d,
    CausalConvTranspose1d,
    Mimi,
    ResidualBlock,
    Seanet,
    StreamingConv,
)
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import MaskedStep, Step

LARGEST: Final = 127.0
"""Largest integer of a rounded key, value or weight, of a digit of a softmax weight, and on either side of a
middle.
"""
BASE: Final = 128.0
"""Base of a softmax weight's two digits."""
MIDDLE: Final = 64.0
"""The byte that represents a query's zero; there are 63 values on either side."""
SMALLEST: Final = 1e-12
"""Smallest divisor, which is used for rows of zeros, whose scale is zero."""


@torch.library.custom_op("antiphon::multiply_bytes", mutates_args=())
def multiply_bytes(left: Tensor, right: Tensor) -> Tensor:
    """Multiply uint8 ``[..., 1, K]`` by int8 ``[..., K, N]`` to int32; leading axes as in torch.matmul."""
    return torch.matmul(left.int(), right.int())


@multiply_bytes.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return torch.matmul(left.float(), right.float()).int()


@torch.library.custom_op("antiphon::nearest_bytes", mutates_args=())
def nearest_bytes(values: Tensor) -> Tensor:
    """Round numbers from 0 to 255 to the nearest bytes."""
    return values.round().to(torch.uint8)


@nearest_bytes.register_fake
def _(values: Tensor) -> Tensor:
    return values.to(torch.uint8)


@dataclass(frozen=True, slots=True)
class IntegerRing(KVRing):
    """A ring of INT8 keys and values in exported graphs, with one slot more than positions.

    State, row first: ``{name}.k_across`` int8 ``[H, D, slots]``, ``{name}.v`` int8 ``[H, slots, D]``, and
    float32 ``[H, slots]`` ``{name}.k_scale``, ``{name}.v_scale`` and ``{name}.k_offset``, the excess score of
    a query that is shifted by ``MIDDLE``. Rows that do not advance write zeros into the last slot, which is
    hidden; they do not have to read values and write them back.
    """

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.capacity + 1

    def specs(self) -> Iterator[TensorSpec]:
        """See the base class."""
        heads, width = self.heads, self.head_dim
        yield TensorSpec(f"{self.name}.k_across", (heads, width, self.slots), torch.int8)
        yield TensorSpec(f"{self.name}.v", (heads, self.slots, width), torch.int8)
        for part in ("k_scale", "v_scale", "k_offset"):
            yield TensorSpec(f"{self.name}.{part}", (heads, self.slots), torch.float32)

    def put(self, step: MaskedStep, slots: Tensor, part: str, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]`` (transposed keys: ``[n, H, D, T]``) at ``slots [n, T]``."""
        name = f"{self.name}.{part}"
        index = [torch.arange(values.shape[0])[:, None, None], torch.arange(self.heads)[None, :, None]]
        if part == "k_across":
            index = [*(axis[..., None] for axis in index), torch.arange(self.head_dim)[None, None, :, None]]
        step.tensors[name] = step.tensors[name].index_put(
            [*index, slots.view(slots.shape[0], *[1] * (len(index) - 1), -1)], values
        )


class IntegerAttention(SelfAttention):
    """Self-attention of a loaded layer over an :class:`IntegerRing`, for the positions of one frame."""

    def __init__(self, attention: SelfAttention) -> None:
        """Take ownership of a layer's matrices."""
        ring = attention.ring
        with torch.device("meta"):
            super().__init__(ring.name, attention.config, attention.compute)
        self.in_proj, self.out_proj = attention.in_proj, attention.out_proj
        self.ring: IntegerRing = IntegerRing(
            ring.name, ring.heads, ring.capacity, ring.head_dim, torch.int8, ring.position, KVForm.INT8
        )

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step, window: Window) -> Tensor:
        """See the base class."""
        assert isinstance(step, MaskedStep)
        (look,) = window.looks
        slots, ring = window.slots, self.ring
        if (idle := step.idle) is not None:
            slots = torch.where(idle[:, None], ring.capacity, slots)
            k, v = (torch.where(idle[:, None, None, None], 0.0, part) for part in (k, v))
        (key, k_scale), (value, v_scale) = _rounded(k, LARGEST), _rounded(v, LARGEST)
        ring.put(step, slots, "k_across", key.transpose(2, 3).to(torch.int8))
        ring.put(step, slots, "v", value.to(torch.int8))
        ring.put(step, slots, "k_scale", k_scale)
        ring.put(step, slots, "v_scale", v_scale)
        ring.put(step, slots, "k_offset", key.sum(dim=-1) * k_scale * MIDDLE)
        return self._look(q, look.mask, step)

    def _look(self, q: Tensor, mask: Tensor, step: MaskedStep) -> Tensor:
        """Queries ``[n, H, T, D]`` to attention outputs."""
        ring = self.ring
        _, heads, positions, width = q.shape
        groups = ring.heads
        alone = heads // groups * positions
        across, values, k_scale, v_scale, k_offset = (
            step.tensors[f"{ring.name}.{part}"][:, :, None]
            for part in ("k_across", "v", "k_scale", "v_scale", "k_offset")
        )
        query, scale = _rounded(q, MIDDLE - 1)
        query = nearest_bytes(query + MIDDLE).reshape(-1, groups, alone, 1, width)
        scale = (scale / math.sqrt(width)).reshape(-1, groups, alone, 1)
        found = multiply_bytes(query, across).reshape(-1, groups, alone, ring.slots)
        scores = (found.float() * k_scale - k_offset) * scale
        hidden = functional.pad(torch.where(mask, 0.0, -math.inf), (0, 1), value=-math.inf)
        scores = scores.reshape(-1, heads, positions, ring.slots) + hidden
        weights = scores.softmax(dim=-1).reshape(-1, groups, alone, ring.slots) * v_scale
        return _weigh(weights, values).reshape(-1, heads, positions, width)


def _weigh(weights: Tensor, values: Tensor) -> Tensor:
    """Weights ``[n, G, A, slots]``, none negative, times bytes ``[n, G, 1, slots, D]``: ``[n, G, A, D]``."""
    most = weights.amax(dim=-1, keepdim=True).clamp_min(SMALLEST)
    digits = weights * (LARGEST / most)
    upper = digits.floor()
    lower = (digits - upper) * (BASE - 1)
    both = torch.stack([nearest_bytes(upper), nearest_bytes(lower)], dim=3)
    found: Tensor = multiply_bytes(both.flatten(2, 3)[:, :, :, None], values).float()
    found = found.reshape(*both.shape[:4], -1)
    return (found[:, :, :, 0] + found[:, :, :, 1] / (BASE - 1)) * (most / LARGEST)


def _rounded(values: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Integers from ``-largest`` to ``largest`` in float32, and their scale."""
    scale = values.abs().amax(dim=-1) / largest
    return (values / scale[..., None].clamp_min(SMALLEST)).round(), scale


def round_rings(transformer: StreamingTransformer, least_bytes: int | None) -> None:
    """Make layers of a loaded transformer keep keys and values in INT8.

    The layers are those whose ring of a row takes ``least_bytes`` or more in float32; None selects no layer.
    """
    config = transformer.config
    ring_bytes = 2 * torch.float32.itemsize * config.context * config.kv_dim
    if least_bytes is None or ring_bytes < least_bytes:
        return
    for layer in transformer.layers:
        assert isinstance(layer, TransformerLayer)
        layer.self_attn = IntegerAttention(layer.self_attn)


TOP: Final = 255.0
"""Largest byte of an input whose bytes count from its minimum."""
DECODER_MIDDLE: Final = 128
"""The byte for zero in a decoder."""
SMALLEST_STEP: Final = 1e-20
"""Smallest scale."""


@torch.library.custom_op("antiphon::round_by_row", mutates_args=())
def round_by_row(values: Tensor, scale: Tensor, middle: int) -> Tensor:
    """Round ``values [r, A, B]`` to bytes: ``middle`` represents 0, and the step of row r is ``scale[r]``."""
    return ((values / scale[:, None, None]).round() + middle).clamp(0, TOP).to(torch.uint8)


@round_by_row.register_fake
def _(values: Tensor, scale: Tensor, middle: int) -> Tensor:  # noqa: ARG001
    return values.to(torch.uint8)


@torch.library.custom_op("antiphon::multiply_rounded", mutates_args=())
def multiply_rounded(values: Tensor, weight: Tensor, scale: Tensor, middle: int) -> Tensor:
    """Compute ``(values - middle) @ weight * scale`` in float32.

    ``values`` is uint8 ``[n, T, K]``, ``weight`` int8 ``[K, N]``, ``scale`` float32 ``[N]``.
    """
    return torch.matmul(values.int() - middle, weight.int()).float() * scale


@multiply_rounded.register_fake
def _(values: Tensor, weight: Tensor, scale: Tensor, middle: int) -> Tensor:  # noqa: ARG001
    return torch.matmul(values.float(), weight.float()) * scale


class IntegerConv(StreamingConv):
    """An INT8 convolution after an ELU, plain or transposed: ``[n, T, in]`` to ``[n, T', out]``.

    A window has ``parts`` strides of inputs, and its product has ``places`` positions of the output. State,
    row first: ``{name}.past`` float32 ``[positions, in]``, the inputs before the first window.
    """

    def __init__(self, layer: CausalConv1d | CausalConvTranspose1d, *, middle: int) -> None:
        """Round the weights of a layer that was loaded and not yet prepared. If ``middle`` is 0, bytes count
        from -1.
        """
        super().__init__()
        weight, self.name, self.middle = layer.weight.data, layer.name, middle
        if isinstance(layer, CausalConv1d):
            self.stride, self.places = layer.stride, 1
            self.parts, self.past_positions = layer.kernel // layer.stride, layer.past_positions
            matrix = weight.permute(2, 1, 0).flatten(0, 1)
        else:
            self.stride, self.places, self.parts, self.past_positions = 1, layer.stride, 2, 1
            own, owed = weight.split(layer.stride, dim=2)
            matrix = torch.cat([part.transpose(1, 2).flatten(1) for part in (owed, own)])
        # The weights in the order of a window: [window, places * out].
        self.in_channels, self.out_channels = layer.in_channels, matrix.shape[1] // self.places
        scale = matrix.abs().amax(dim=0).clamp_min(SMALLEST_STEP) / LARGEST
        self.weight = nn.Parameter((matrix / scale).round().to(torch.int8), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        bias = torch.zeros(self.out_channels) if layer.bias is None else layer.bias.data
        bias = bias.repeat(self.places)
        if not middle:
            bias -= (self.weight.float() * scale).sum(dim=0)  # the excess from inputs that start at -1
        self.bias = nn.Parameter(bias, requires_grad=False)

    def specs(self) -> Iterator[TensorSpec]:
        """The state of this layer."""
        if self.past_positions:
            yield TensorSpec(f"{self.name}.past", (self.past_positions, self.in_channels), torch.float32)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, T, in]`` to ``[n, T', out]``."""
        if self.past_positions:
            x = torch.cat([step.read(f"{self.name}.past"), x], dim=1)
            step.write(f"{self.name}.past", x[:, -self.past_positions :])
        count, width = x.shape[1] // self.stride, self.stride * self.in_channels
        positions = count - self.parts + 1
        strides = (x if self.middle else x + 1).reshape(-1, count, width)
        if self.parts == 1:
            windows = strides
        else:  # [n, positions, parts * width]
            windows = torch.cat([strides[:, part : part + positions] for part in range(self.parts)], dim=2)
        most = windows.amax(dim=2)
        scale = torch.maximum(most, -windows.amin(dim=2)) / LARGEST if self.middle else most / TOP
        scale = scale.clamp_min(SMALLEST_STEP)  # of bytes that just hold a window, [n, positions]
        rows = windows.reshape(-1, 1, self.parts * width)
        rounded = round_by_row(rows, scale.reshape(-1), self.middle)
        rounded = rounded.reshape(-1, positions, self.parts * width)
        out = multiply_rounded(rounded, self.weight, self.scale, self.middle) * scale[:, :, None] + self.bias
        found: Tensor = out.reshape(-1, positions * self.places, self.out_channels)
        return found


class WholeConvTranspose(StreamingConv):
    """A transposed convolution in float32 with a kernel of two strides, whose state is its last input:
    ``[n, in, T]`` to ``[n, out, T * stride]``.

    Positions that depend on inputs of two frames are computed whole in the later frame, so that no overlap is
    cut off, added and joined. State: ``{name}.past`` float32 ``[in, 1]``.
    """

    def __init__(self, layer: CausalConvTranspose1d) -> None:
        """Take ownership of the weights of a layer that was loaded and not yet prepared."""
        super().__init__()
        self.name, self.stride, self.in_channels = layer.name, layer.stride, layer.in_channels
        self.weight, self.bias = layer.weight, layer.bias

    def specs(self) -> Iterator[TensorSpec]:
        """The state of this layer."""
        yield TensorSpec(f"{self.name}.past", (self.in_channels, 1), torch.float32)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """Map ``[n, in, T]`` to ``[n, out, T * stride]``."""
        x = step.extend(f"{self.name}.past", x)
        return functional.conv_transpose1d(x, self.weight, self.bias, self.stride, padding=self.stride)


class Turn(nn.Module):
    """Transposes between layers with channels first and with positions first."""

    def forward(self, x: Tensor, step: Step) -> Tensor:  # noqa: ARG002
        """Map ``[n, a, b]`` to ``[n, b, a]``."""
        return x.transpose(1, 2)


def round_convolutions(mimi: Mimi, most_positions: Mapping[str, int]) -> None:
    """Make convolutions of a codec, which is loaded but not yet prepared, multiply in INT8.

    ``most_positions`` has a number for "encoder" and "decoder" (0 if missing). Convolutions that follow an
    ELU are rounded if they have at most this number of positions a frame; for a transposed convolution the
    input's positions count. A residual block's convolutions are all rounded, or none.
    """
    round_network(mimi.encoder, most_positions.get("encoder", 0), middle=0)
    round_network(mimi.decoder, most_positions.get("decoder", 0), middle=DECODER_MIDDLE)


def round_network(network: Seanet, most_positions: int, *, middle: int) -> None:
    """Do :func:`round_convolutions` for one half of a codec; bytes count from -1 if ``middle`` is 0, and
    otherwise are symmetric. The long transposed convolutions of a network with rounded ones keep another
    state (:class:`WholeConvTranspose`).
    """
    layers: list[nn.Module] = []
    is_turned = False
    for layer in network.model:
        is_behind = bool(layers) and _is_bounded(layers[-1])
        rounded = _rounded_layer(layer, most_positions, middle, is_behind=is_behind)
        if not isinstance(layer, nn.ELU) and is_turned != (rounded is not None):
            layers.append(Turn())
            is_turned = not is_turned
        layers.append(layer if rounded is None else rounded)
    network.model = nn.Sequential(*layers, *([Turn()] if is_turned else []))
    for place, layer in enumerate(network.model):
        if (
            most_positions
            and isinstance(layer, CausalConvTranspose1d)
            and layer.is_whole
            and not layer.is_short
        ):
            network.model[place] = WholeConvTranspose(layer)


def _is_bounded(layer: nn.Module) -> bool:
    """Whether a layer is an ELU whose output is never below -1."""
    return isinstance(layer, nn.ELU) and layer.alpha <= 1


def _rounded_layer(
    layer: nn.Module, most_positions: int, middle: int, *, is_behind: bool
) -> nn.Module | None:
    """The replacement of a layer, which is after an ELU if ``is_behind``; None to keep it."""
    if isinstance(layer, CausalConv1d | CausalConvTranspose1d):
        is_chosen = is_behind and layer.is_whole and layer.positions <= most_positions
        return IntegerConv(layer, middle=middle) if is_chosen else None
    if isinstance(layer, ResidualBlock):
        is_behind = all(_is_bounded(child) for child in layer.block if isinstance(child, nn.ELU))
        inner = [
            child
            if isinstance(child, nn.ELU)
            else _rounded_layer(child, most_positions, middle, is_behind=is_behind)
            for child in layer.block
        ]
        if None not in inner:
            layer.block = nn.Sequential(*(child for child in inner if child is not None))
            return layer
    return None


op: Any = onnxscript.opset20  # its annotations do not know that Python's numbers become constants

FLOAT, UINT8 = 1, 2
"""ONNX's numbers of the types."""

OPSET = 20
"""The lowest opset with all operators of the graphs (Gelu)."""


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> Any:
    """Attention of ``[n, H, T, D]`` to ``[n, G, K, D]``; each of the G heads of keys serves H / G heads of
    queries.

    Every query is a separate product, because the runtime multiplies a single row without copying keys and
    values to another layout. The runtime does not use this routine for a product into which it has folded the
    scale; the Reshape between them prevents the folding (decision 0010).
    """
    if dropout_p or is_causal:
        raise ValueError("attention with dropout or a causal flag does not occur in these models")
    _, heads, positions, width = query.shape
    groups = key.shape[1]
    alone = heads // groups * positions
    query = op.Mul(query, op.CastLike(1 / math.sqrt(width) if scale is None else scale, query))
    query = op.Reshape(query, [0, groups, alone, 1, width])
    keys = op.Transpose(op.Unsqueeze(key, [2]), perm=[0, 1, 2, 4, 3])
    scores = op.Reshape(op.MatMul(query, keys), [0, heads, positions, -1])
    if attn_mask is not None:
        scores = op.Add(scores, op.Where(attn_mask, 0.0, -math.inf))
    weights = op.Reshape(op.Softmax(scores, axis=-1), [0, groups, alone, 1, -1])
    return op.Reshape(op.MatMul(weights, op.Unsqueeze(value, [2])), [0, heads, positions, width])


LEAST_EXPONENT: Final = -80.0
"""Lower exponents give the same: exp(-80) - 1 is -1 in float32. Below -87 the results of exp are denormal
numbers, which take several times as long."""


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """ELU as four operators, which take an eighth of the time of the runtime's ELU; the results are equal
    within 1e-7.
    """
    if (alpha, scale, input_scale) != (1.0, 1.0, 1.0):
        raise ValueError(f"ELU with {alpha}, {scale} and {input_scale} does not occur in these models")
    return op.Max(x, op.Sub(op.Exp(op.Clip(x, LEAST_EXPONENT, 0.0)), 1.0))


def divide(x: Any, divisor: Any, rounding_mode: str | None = None) -> Any:
    """Floor division in integers: the exporter's translation uses float32, which is exact only up to 2^24."""
    if rounding_mode != "floor":
        raise ValueError(f"division with rounding mode {rounding_mode} does not occur in these models")
    divisor = op.CastLike(divisor, x)
    return op.Div(op.Sub(x, op.Mod(x, divisor)), divisor)


def translate_multiply_bytes(left: Any, right: Any) -> Any:
    """Translate :func:`multiply_bytes`; without zero points the runtime reads the right side in place."""
    return op.MatMulInteger(left, right)


def translate_nearest_bytes(values: Any) -> Any:
    """Translate :func:`nearest_bytes` to one operator that rounds and converts."""
    return op.QuantizeLinear(values, 1.0, op.Cast(0, to=UINT8))


def translate_round_by_row(values: Any, scale: Any, middle: int) -> Any:
    """Translate :func:`round_by_row` to operators of ONNX."""
    if not middle:
        return op.QuantizeLinear(values, scale, axis=0)
    zeros = op.Expand(op.Cast(middle, to=UINT8), op.Shape(scale))
    return op.QuantizeLinear(values, scale, zeros, axis=0)


def translate_multiply_rounded(values: Any, weight: Any, scale: Any, middle: int) -> Any:
    """Translate :func:`multiply_rounded`; a rule of ``onnx_fusions`` fuses the nodes."""
    found = op.MatMulInteger(values, weight, *([op.Cast(middle, to=UINT8)] if middle else []))
    return op.Mul(op.Cast(found, to=FLOAT), scale)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention,
    torch.ops.aten.elu.default: elu,
    torch.ops.aten.div.Tensor_mode: divide,
    torch.ops.antiphon.multiply_bytes.default: translate_multiply_bytes,
    torch.ops.antiphon.nearest_bytes.default: translate_nearest_bytes,
    torch.ops.antiphon.round_by_row.default: translate_round_by_row,
    torch.ops.antiphon.multiply_rounded.default: translate_multiply_rounded,
}
"""The table for ``torch.onnx.export(custom_translation_table=...)``."""

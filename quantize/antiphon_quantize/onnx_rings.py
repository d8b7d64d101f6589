"""Attention over rings of INT8 for exported graphs: integer products with what lies in the ring.

ONNX Runtime has a routine for one row of bytes times a matrix of signed bytes: it reads the matrix where that
lies. It takes no zero point, and adds along the matrix's columns. So keys lie across (the width of a head by
the slots), and what a query's offset adds to a score is kept as a number for each slot. Factors end at 127:
CPUs without VNNI add two products in 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.backends.torch.modules.attention import SelfAttention, Window
from antiphon.backends.torch.modules.kv import KVRing
from antiphon.backends.torch.modules.layer import TransformerLayer
from antiphon.backends.torch.modules.transformer import StreamingTransformer
from antiphon.backends.torch.state import TensorSpec
from antiphon.backends.torch.step import MaskedStep, Step

LARGEST: Final = 127.0
"""Of a rounded key or value, and of a digit of a softmax weight."""
BASE: Final = 128.0
"""Of a softmax weight's two digits."""
MIDDLE: Final = 64.0
"""The byte that stands for a query's zero; 63 of them lie on either side."""
SMALLEST: Final = 1e-12
"""What is divided by is no smaller; zeros have a scale of zero."""


@torch.library.custom_op("antiphon::multiply_bytes", mutates_args=())
def multiply_bytes(left: Tensor, right: Tensor) -> Tensor:
    """Bytes ``[..., 1, K]`` times signed bytes ``[..., K, N]``: int32, batches as in a product of floats."""
    return torch.matmul(left.int(), right.int())


@multiply_bytes.register_fake
def _(left: Tensor, right: Tensor) -> Tensor:
    return torch.matmul(left.float(), right.float()).int()


@torch.library.custom_op("antiphon::nearest_bytes", mutates_args=())
def nearest_bytes(values: Tensor) -> Tensor:
    """Numbers from 0 to 255 to the nearest bytes."""
    return values.round().to(torch.uint8)


@nearest_bytes.register_fake
def _(values: Tensor) -> Tensor:
    return values.to(torch.uint8)


@dataclass(frozen=True, slots=True)
class IntegerRing(KVRing):
    """A ring of INT8 as exported graphs keep it, with one slot more than positions.

    State, row first: ``{name}.k_across`` int8 ``[H, D, slots]``, ``{name}.v`` int8 ``[H, slots, D]``, and
    float32 ``[H, slots]`` ``{name}.k_scale``, ``{name}.v_scale`` and ``{name}.k_offset``, what a query that
    is moved by ``MIDDLE`` scores too much. Rows that do not advance write zeros into the last slot, which is
    hidden, in place of reading what they would put back.
    """

    @property
    def slots(self) -> int:
        """How many there are."""
        return self.capacity + 1

    def specs(self) -> Iterator[TensorSpec]:
        """See the base class."""
        heads, width = self.heads, self.head_dim
        yield TensorSpec(f"{self.name}.k_across", (heads, width, self.slots), torch.int8)
        yield TensorSpec(f"{self.name}.v", (heads, self.slots, width), torch.int8)
        for part in ("k_scale", "v_scale", "k_offset"):
            yield TensorSpec(f"{self.name}.{part}", (heads, self.slots), torch.float32)

    def put(self, step: MaskedStep, slots: Tensor, part: str, values: Tensor) -> None:
        """Write ``values [n, H, T, ...]``, of keys that lie across ``[n, H, D, T]``, at ``slots [n, T]``."""
        name = f"{self.name}.{part}"
        index = [torch.arange(values.shape[0])[:, None, None], torch.arange(self.heads)[None, :, None]]
        if part == "k_across":
            index = [*(axis[..., None] for axis in index), torch.arange(self.head_dim)[None, None, :, None]]
        step.tensors[name] = step.tensors[name].index_put(
            [*index, slots.view(slots.shape[0], *[1] * (len(index) - 1), -1)], values
        )


class IntegerAttention(SelfAttention):
    """Self-attention of a loaded layer over an :class:`IntegerRing`, of one frame's positions."""

    def __init__(self, attention: SelfAttention) -> None:
        """Take over a layer's matrices."""
        ring = attention.ring
        with torch.device("meta"):
            super().__init__(ring.name, attention.config, attention.compute)
        self.in_proj, self.out_proj = attention.in_proj, attention.out_proj
        self.ring: IntegerRing = IntegerRing(
            ring.name, ring.heads, ring.capacity, ring.head_dim, torch.int8, ring.position, int8=True
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
        """Queries ``[n, H, T, D]`` to what they find."""
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
    """Whole numbers from ``-largest`` to ``largest`` in float32, and what one of them stands for."""
    scale = values.abs().amax(dim=-1) / largest
    return (values / scale[..., None].clamp_min(SMALLEST)).round(), scale


def round_rings(transformer: StreamingTransformer, least_bytes: int | None) -> None:
    """Let layers of a loaded transformer keep keys and values in INT8.

    Those whose ring of a row would take ``least_bytes`` or more in float32; none, where that is None.
    """
    config = transformer.config
    ring_bytes = 2 * torch.float32.itemsize * config.context * config.kv_dim
    if least_bytes is None or ring_bytes < least_bytes:
        return
    for layer in transformer.layers:
        assert isinstance(layer, TransformerLayer)
        layer.self_attn = IntegerAttention(layer.self_attn)

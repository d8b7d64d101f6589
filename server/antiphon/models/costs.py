"""What a tick should take on a card: bytes, arithmetic and launches to milliseconds.

Everything here is computed, from constants that no run on a card has confirmed (``GpuCard.is_measured``). A
stage takes its launches, with the instructions of their kernels, and the longer of its bytes and arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from antiphon.models.cards import GpuCard
from antiphon.models.tiles import FEW_ROWS, MANY_COLUMNS, SHORT_ROWS, tile_of

CODEC_FLOP: Final = 0.43e9
"""Of Mimi for a row and a direction: 163 million multiplications of convolutions, 50 of its transformer, each
with an addition."""

CODEC_BYTES: Final = 30e6
"""Of Mimi's activations for a row and a direction, written and read."""

CODEC_ATTENTION_S: Final = 8 * 3.2e-6
"""Of a direction's eight layers, up to CODEC_ATTENTION_ROWS: 5,500 instructions of four warps a program."""

CODEC_ATTENTION_ROWS: Final = 49 / 132
"""Rows of a unit whose eight heads fill it, three programs each."""

PRODUCT_SHARE: Final = 0.93
RING_SHARE: Final = 0.88
"""Of a card's copy rate that products, and attention, reach."""

ISSUE_S: Final = 0.5e-6
"""Of the instructions of a small kernel, in the mean: 300 to 1,400 of a warp, up to two warps a scheduler."""

TEXT_CHOICE_S: Final = 24e-6
CODE_CHOICE_S: Final = 2.5e-6
"""Of choosing among 32,000 tokens: 5,300 instructions of 32 warps; among 2,048: 2,200 of 8. Instructions are
counted in machine code (``python -m lab.bench.gpu_kernels``), one a clock and scheduler."""

CLOCK_HZ: Final = 1.755e9
"""At which instructions take the times above."""

CODEC_LAUNCHES: Final = 182
"""Of a direction of Mimi; 183 of the encoder with eight codebooks, 180 of the decoder."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Of one stage, milliseconds: by bytes, by arithmetic, by launches, and in all."""

    bytes_ms: float
    arithmetic_ms: float
    nodes_ms: float

    @property
    def ms(self) -> float:
        """All of it: launches do not overlap with work, the rest does."""
        return self.nodes_ms + max(self.bytes_ms, self.arithmetic_ms)


@dataclass(frozen=True, slots=True)
class Launches:
    """Kernels of a part of the language model: in bfloat16, and in INT8 of many, 16 and 4 rows at most."""

    bfloat16: int
    int8: int
    short_int8: int
    few_int8: int

    def of(self, rows: int, *, is_int8: bool) -> int:
        """Those of a tick over so many rows."""
        if not is_int8:
            return self.bfloat16
        if rows <= FEW_ROWS:
            return self.few_int8
        return self.short_int8 if rows <= SHORT_ROWS else self.int8


LAYER: Final = Launches(10, 9, 9, 6)
CROSS: Final = Launches(6, 8, 8, 6)
DEPFORMER_LAYER: Final = Launches(8, 8, 6, 5)
STEP_LAUNCHES: Final = 3
"""Of a depformer's step beside its layers: a token embedded, the head, a token chosen."""

OTHER_LAUNCHES: Final = 22
"""Of delays, embeddings, text and positions."""


@dataclass(frozen=True, slots=True)
class TickWork:
    """What a tick of a model asks of a card, all rows at full context.

    ``weights_bytes`` are read once, ``frame_bytes`` for each frame of a row's context, ``row_bytes`` for a
    row whatever its age. ``passes`` are Mimi's directions. The language model has ``layers``, of which
    ``cross_layers`` see a voice, and a depformer of ``steps`` of ``step_layers`` each. ``int8_weights`` and
    ``int8_ring`` are 1 or 0: a backend tells all of it as numbers (``BackendInfo.work``).
    """

    weights_bytes: int
    frame_bytes: int
    context: int
    row_bytes: int
    passes: int
    layers: int
    cross_layers: int
    steps: int
    step_layers: int
    int8_weights: int
    int8_ring: int

    def launches(self, rows: int) -> int:
        """Kernels of the language model."""
        is_int8 = bool(self.int8_weights)
        parts = (
            (self.layers, LAYER),
            (self.cross_layers, CROSS),
            (self.steps * self.step_layers, DEPFORMER_LAYER),
        )
        layers = sum(count * part.of(rows, is_int8=is_int8) for count, part in parts)
        return layers + self.steps * STEP_LAUNCHES + OTHER_LAUNCHES

    def tick_ms(self, rows: int, card: GpuCard) -> float:
        """A tick in which so many rows are ready: the stages one after another, and the host's part."""
        codec = codec_cost(rows, card, CODEC_LAUNCHES)
        return 1000 * card.host_s + self.passes * codec.ms + self.model_cost(rows, self.context, card).ms

    def model_cost(self, rows: int, frames: int, card: GpuCard, launches: int | None = None) -> StageCost:
        """Of the language model, over rows that have seen so many frames; of counted launches, if given."""
        ring_bytes = rows * self.frame_bytes * min(frames, self.context)
        weights_s = product_s(self.weights_bytes, rows, card)
        ring_s = (ring_bytes + rows * self.row_bytes) / (RING_SHARE * card.copy_bytes_per_s)
        nodes = self.launches(rows) if launches is None else launches
        instructions_s = nodes * ISSUE_S + TEXT_CHOICE_S + self.steps * CODE_CHOICE_S
        nodes_s = nodes * card.node_s + instructions_s * CLOCK_HZ / card.clock_hz
        return StageCost(1000 * (weights_s + ring_s), 0.0, 1000 * nodes_s)


def product_s(weights_bytes: int, rows: int, card: GpuCard) -> float:
    """A wide product: weights from memory once, and all that its tiles read from the cache.

    Each tile of rows reads all weights, and each tile of columns reads a tile's rows once more.
    """
    tile = tile_of(rows, MANY_COLUMNS + 1)
    through_cache = weights_bytes * -(-rows // tile.rows) * (1 + tile.rows / tile.columns)
    memory_s = weights_bytes / (PRODUCT_SHARE * card.copy_bytes_per_s)
    return max(memory_s, through_cache / card.cache_bytes_per_s)


def codec_cost(rows: int, card: GpuCard, launches: int) -> StageCost:
    """Of one direction of Mimi."""
    arithmetic_s = rows * CODEC_FLOP / card.float32_flop_per_s
    attention_s = CODEC_ATTENTION_S * max(1.0, rows / (CODEC_ATTENTION_ROWS * card.units))
    bytes_s = rows * CODEC_BYTES / card.copy_bytes_per_s
    nodes_s = launches * card.node_s + (launches * ISSUE_S + attention_s) * CLOCK_HZ / card.clock_hz
    return StageCost(1000 * bytes_s, 1000 * arithmetic_s, 1000 * nodes_s)


def rows_computed(work: TickWork, card: GpuCard, limit_ms: float, at_most: int) -> int:
    """The most ready rows, up to ``at_most``, whose tick is computed to take no longer; at least 1."""
    low, high = 1, max(1, at_most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if work.tick_ms(middle, card) <= limit_ms else (low, middle - 1)
    return low

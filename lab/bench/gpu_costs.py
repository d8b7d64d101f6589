"""What a tick should take on a card: bytes, instructions and graph nodes to milliseconds.

Everything here is computed, of constants that no card has confirmed yet (``Card.is_measured``); it stands
beside each measurement of ``lab.bench.gpu_session``, so that the first run says which constant is wrong.
A stage takes its nodes' launches and the longest of what its bytes, instructions and arithmetic take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from antiphon.backends.torch.kernels.fused import FEW_ROWS
from lab.bench.gpu_models import Form, Size, reads


@dataclass(frozen=True, slots=True)
class Card:
    """A card's constants. ``issue_share`` is what of its issue slots a kernel that is bound by them fills."""

    name: str
    copy_bytes_per_s: float
    cache_bytes_per_s: float
    units: int
    clock_hz: float
    float32_flop_per_s: float
    node_s: float
    host_s: float
    issue_share: float
    is_measured: bool


H200: Final = Card("H200", 4.3e12, 5.5e12, 132, 1.755e9, 30e12, 2.2e-6, 0.3e-3, 0.6, is_measured=False)
H100: Final = Card("H100", 3.0e12, 5.5e12, 132, 1.755e9, 30e12, 2.3e-6, 0.3e-3, 0.6, is_measured=False)


def card_called(name: str) -> Card:
    """The constants for a device of this name; an H200's for any that is not known."""
    return next((card for card in (H200, H100) if card.name in name), H200)


@dataclass(frozen=True, slots=True)
class Nodes:
    """Kernels of a stage: in bfloat16; with INT8 weights, keys and values; and of ``FEW_ROWS`` so."""

    bfloat16: int
    int8: int
    few_int8: int

    def of(self, rows: int, *, is_int8: bool) -> int:
        """Those of a tick over so many rows."""
        if not is_int8:
            return self.bfloat16
        return self.few_int8 if rows <= FEW_ROWS else self.int8


NODES: Final[Mapping[tuple[str, str], Nodes]] = {
    ("moshi-7b", "encode"): Nodes(443, 443, 443),
    ("moshi-7b", "lm"): Nodes(766, 846, 526),
    ("moshi-7b", "decode"): Nodes(419, 419, 419),
    ("stt-1b", "encode"): Nodes(563, 563, 563),
    ("stt-1b", "lm"): Nodes(204, 220, 156),
    ("tts-1.6b", "lm"): Nodes(1481, 1657, 1049),
    ("tts-1.6b", "decode"): Nodes(419, 419, 419),
}
"""Kernels by model and stage, counted on the meta device."""

RING_INSTRUCTIONS: Final = {True: 22.0, False: 11.0}
"""Instructions of a warp for each KiB of a ring in INT8, or in bfloat16; counted in machine code."""

CODEC_FLOP: Final = 0.43e9
"""Of Mimi for a row and a direction: 163 million multiplications of convolutions, 50 of its transformer, each
with an addition."""

PRODUCT_COLUMNS: Final = {False: 32, True: 64}
"""Of a tile of our product, the second of more than 64 rows: each reads all rows once more from the cache."""

LEAST_ROWS: Final = 16
WARP_SCHEDULERS: Final = 4


@dataclass(frozen=True, slots=True)
class StageCost:
    """Of one stage, milliseconds: by bytes, by instructions, by arithmetic, by launches, and in all."""

    bytes_ms: float
    issue_ms: float
    arithmetic_ms: float
    nodes_ms: float

    @property
    def ms(self) -> float:
        """All of it: launches do not overlap with work, the rest does."""
        return self.nodes_ms + max(self.bytes_ms, self.issue_ms, self.arithmetic_ms)


def stage_costs(
    size: Size, rows: int, frames: int, card: Card, form: Form | None = None
) -> dict[str, StageCost]:
    """Each stage of a tick over ``rows`` rows that have seen ``frames`` frames; without a form in INT8."""
    form = form or Form(int8_weights=True, int8_kv=True, dtype=torch.bfloat16)
    name = size.name.partition(",")[0]
    return {
        stage: _language_model(size, rows, frames, card, form, nodes.of(rows, is_int8=form.int8_weights))
        if stage == "lm"
        else _codec(rows, card, nodes.of(rows, is_int8=form.int8_weights))
        for (model, stage), nodes in NODES.items()
        if model == name
    }


def tick_ms(costs: Mapping[str, StageCost], card: Card) -> float:
    """A whole tick: its stages one after another, and the host's part."""
    return 1000 * card.host_s + sum(cost.ms for cost in costs.values())


def _codec(rows: int, card: Card, nodes: int) -> StageCost:
    arithmetic_s = rows * CODEC_FLOP / card.float32_flop_per_s
    return StageCost(0.0, 0.0, 1000 * arithmetic_s, 1000 * nodes * card.node_s)


def _language_model(size: Size, rows: int, frames: int, card: Card, form: Form, nodes: int) -> StageCost:
    cost = reads(size, form)
    ring_bytes = rows * cost.kv_bytes_per_frame * min(frames, cost.context)
    tile_rows = max(LEAST_ROWS, 1 << (rows - 1).bit_length())
    weights_s = max(
        cost.weights_bytes / card.copy_bytes_per_s,
        cost.weights_bytes * (1 + tile_rows / PRODUCT_COLUMNS[rows > 64]) / card.cache_bytes_per_s,
    )
    slots_per_s = card.units * WARP_SCHEDULERS * card.clock_hz * card.issue_share
    warps = 4
    issue_s = warps * ring_bytes / 1024 * RING_INSTRUCTIONS[form.int8_kv] / slots_per_s
    bytes_s = weights_s + ring_bytes / card.copy_bytes_per_s
    return StageCost(1000 * bytes_s, 1000 * (weights_s + issue_s), 0.0, 1000 * nodes * card.node_s)

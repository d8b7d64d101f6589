"""How a card's kernels cut the products of linear layers, and from how many rows on they do it otherwise.

The kernels (``backends/torch/kernels/rows.py``) take these numbers, and costs are computed of them. All were
chosen by arithmetic and counted in machine code; none was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FEW_ROWS: Final = 4
"""Rows up to which a product makes them itself, however long. Of four rows its programs issue up to 32
instructions a KiB of weights, and memory's full rate leaves time for 33."""

SHORT_DEPTH: Final = 1024
SHORT_ROWS: Final = 16
"""Of rows of at most so many elements (the depformer's), a product makes up to so many itself: its weights
are few, and another launch costs more than rounding 16,384 elements in every program."""

LEAST_ROWS: Final = 16
"""Rows of a tile: what the matrix units take at least."""

MOST_ROWS: Final = 128
"""Rows of a tile at most, up to which no weight is read twice."""

MANY_COLUMNS: Final = 2048
"""Columns of a product above which a tile of few rows takes 32 of them, else 16: 4096 then make 128 programs,
about one for each of a card's 132 units, and 1024 make 64."""

DEPTH_BYTES: Final = 256
"""Of each weight's row in a tile: 8 KiB of weights a stage, of which four are under way at a time."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: ``rows`` by ``columns``, ``depth`` bytes of both a stage."""

    rows: int
    columns: int
    depth: int
    warps: int


def tile_of(rows: int, columns: int) -> Tile:
    """The tile for so many rows and a weight of so many columns."""
    if rows > MOST_ROWS // 2:
        return Tile(MOST_ROWS, 64, DEPTH_BYTES // 2, 8)
    tile_rows = max(LEAST_ROWS, 1 << (rows - 1).bit_length())
    return Tile(tile_rows, 32 if columns > MANY_COLUMNS else 16, DEPTH_BYTES, 4)


def makes_rows(count: int, depth: int) -> bool:
    """Whether a product of so many rows, of so many elements each, norms and rounds them itself."""
    return count <= (SHORT_ROWS if depth <= SHORT_DEPTH else FEW_ROWS)

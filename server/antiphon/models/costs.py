"""Estimates the time of a tick on a GPU from its bytes, its arithmetic and its launches.

All results are computed, from constants fitted to a run on an H100 (``GpuCard.is_measured``);
``docs/benchmarks/gpu.md`` has the points of the fit, and its deviation at all other points. Each constant of
another GPU is the same fraction of its datasheet's value as on the H100. The time of a stage is the time of
its kernel launches, including the kernels' latency, plus the longer of two times: for its bytes and for its
arithmetic. The kernels (``backends/torch/kernels/rows.py``) also use the tiles of this module for their
linear layers, chosen by arithmetic and by instruction counts in machine code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COMPUTED: Final = "computed, not measured"


@dataclass(frozen=True, slots=True)
class GpuCard:
    """The constants of a GPU.

    ``memory_bytes`` is the memory available to a program, ``cache_bytes_per_s`` the rate of the level 2
    cache. Kernels run on ``units`` at ``clock_hz``. ``node_s`` is the cost of another kernel in a graph
    without the kernel's own latency. ``host_s`` is the host's part of a tick outside its stages.
    ``is_measured``: the constants are fitted to a run on this GPU.
    """

    name: str
    memory_bytes: float
    copy_bytes_per_s: float
    cache_bytes_per_s: float
    float32_flop_per_s: float
    units: int
    clock_hz: float
    node_s: float = 1.0e-6
    host_s: float = 0.45e-3
    is_measured: bool = False

    @property
    def label(self) -> str:
        """A note on a number computed with these constants: whether they are measured."""
        return f"on {self.name}'s measured constants" if self.is_measured else COMPUTED


H200: Final = GpuCard("H200", 150.0e9, 4.3e12, 6.5e12, 15e12, 132, 1.755e9)
H100: Final = GpuCard("H100", 85.0e9, 3.0e12, 6.5e12, 15e12, 132, 1.755e9, is_measured=True)
A100: Final = GpuCard("A100", 85.0e9, 1.8e12, 4.0e12, 4.4e12, 108, 1.41e9)
L40S: Final = GpuCard("L40S", 47.7e9, 0.78e12, 4.5e12, 20e12, 142, 2.52e9)
RTX_4090: Final = GpuCard("RTX 4090", 25.3e9, 0.91e12, 5.0e12, 18e12, 128, 2.52e9)
L4: Final = GpuCard("L4", 23.6e9, 0.27e12, 1.8e12, 6.8e12, 58, 2.04e9)
"""GPU constants from datasheets: nine tenths of the memory's rate, 22 % of the float32 rate, highest clock.

Fitted on an H100: a node is 1.0 us in a chain of torch's and 1.2 of Triton's; ``host_s`` is about the mean of
one row with full, half full and empty rings (0.26, 0.50, 0.56 ms). Mimi's decoder takes 29 us more for each
row from 1 to 64, 22 % of the float32 rate. The four products of a layer read tiles from the cache at 7.3 TB/s
with 64 rows and at 5.7 with 128. The caches' rates of other GPUs are estimates.
"""

DRIVER_NAMES: Final = {
    "NVIDIA H200": H200,
    "NVIDIA H100 80GB HBM3": H100,
    "NVIDIA A100-SXM4-80GB": A100,
    "NVIDIA L40S": L40S,
    "NVIDIA GeForce RTX 4090": RTX_4090,
    "NVIDIA L4": L4,
}
"""GPU constants by the driver's full name. An H100 PCIe, an H100 NVL, a GH200 and MIG slices have other rates
and are not listed.
"""

CARDS: Final = tuple(DRIVER_NAMES.values())
"""The GPUs with known constants, the largest first."""


def card_called(name: str) -> GpuCard | None:
    """The constants of the GPU with this driver name; None if unknown."""
    return DRIVER_NAMES.get(name)


FEW_ROWS: Final = 4
"""Maximum number of rows that a product itself normalises and rounds, at any depth.

For four rows its programs issue up to 32 instructions per KiB of weights. At the full memory rate there is
time for 33.
"""

SHORT_DEPTH: Final = 1024
SHORT_ROWS: Final = 16
"""A product itself normalises and rounds up to ``SHORT_ROWS`` rows of at most ``SHORT_DEPTH`` elements (the
depformer's): the depformer has few weights, and another launch costs more than rounding 16,384 elements in
every program.
"""

LEAST_ROWS: Final = 16
"""Fewest rows of a tile, the minimum of the matrix units."""

MOST_ROWS: Final = 128
"""Maximum number of rows of a tile, up to which every weight is read only once."""

MANY_COLUMNS: Final = 2048
"""Columns of a product above which a tile of few rows has 32 columns instead of 16: 4096 columns then give
128 programs, about one for each of an H100's 132 units, and 1024 columns give 64.
"""

DEPTH_BYTES: Final = 256
"""Bytes of each weight row in a tile. A stage then has 8 KiB of weights, and four stages are loaded at a
time.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a product: ``rows`` by ``columns``, and ``depth`` bytes of both per stage."""

    rows: int
    columns: int
    depth: int
    warps: int


def tile_of(rows: int, columns: int) -> Tile:
    """The tile for a number of rows and a weight with a number of columns."""
    if rows > MOST_ROWS // 2:
        return Tile(MOST_ROWS, 64, DEPTH_BYTES // 2, 8)
    tile_rows = max(LEAST_ROWS, 1 << (rows - 1).bit_length())
    return Tile(tile_rows, 32 if columns > MANY_COLUMNS else 16, DEPTH_BYTES, 4)


PAIRED_TILES: Final = (Tile(16, 32, 64, 4), Tile(32, 64, 64, 4))
"""Tiles for INT4 weights: one for few rows, one for more. Each sum needs an int32 and a float32, so larger
tiles would need more instructions.
"""

PAIRED_INSTRUCTIONS: Final = {16: 95, 32: 105}
"""Instructions of a warp for a KiB of INT4 weights, at most, by the rows of a tile
(``python -m lab.bench.gpu_kernels --bits 4``)."""

PAIRED_STALLS: Final = 1.6
"""Clocks of a unit for each of them, by four warps: on an H100 1.65 at 1 row, 1.6 at 64, 1.3 at 128."""


def paired_tile_of(rows: int) -> Tile:
    """The tile for a product of ``rows`` rows with INT4 weights."""
    return PAIRED_TILES[rows > PAIRED_TILES[0].rows]


def makes_rows(count: int, depth: int) -> bool:
    """Whether the kernel of a product of ``count`` rows of ``depth`` elements also normalises and rounds the
    rows.
    """
    return count <= (SHORT_ROWS if depth <= SHORT_DEPTH else FEW_ROWS)


CODEC_FLOP: Final = 0.43e9
"""Arithmetic operations of Mimi for a row and a direction: 163 million multiplications of convolutions and 50
million of its transformer, each with an addition.
"""

CODEC_BYTES: Final = 30e6
"""Bytes of Mimi's activations per row and direction, written and read."""

TICK_ROW_BYTES: Final = 1_725_000
"""Peak memory of a tick in bytes for each of its rows, without their state: a convolution of Mimi and its
input. Stages run one after the other, and no other stage takes as much.
"""

PRODUCT_SHARE: Final = 0.93
RING_SHARE: Final = 0.98
"""Share of a GPU's copy rate that products, and attention, reach. On an H100 four products of a layer reach
0.93 at 1 row, attention 0.98 in a tick of 64 full rows."""

UNFILLED_SHARE: Final = 0.07
"""Time of an unfilled slot of a ring as a share of the time of a filled slot: its programs start and end at
once. Measured with 64 rows of INT8 rings, empty and full, on an H100.
"""

KERNEL_S: Final = 2.7e-6
CODEC_KERNEL_S: Final = 3.4e-6
"""Mean latency of a kernel of the language model and of Mimi, whose attention takes 15 us. On an H100: the
language model's 478 kernels at 1 row and 718 at 64, Mimi's decoder at 1 row."""

START_S: Final = 0.2e-3
"""The host's part of a tick's first stage, before its launch: an H100's encoder less its decoder, 1 row."""

TEXT_CHOICE_S: Final = 50e-6
CODE_CHOICE_S: Final = 5.5e-6
"""Time to choose among 32,000 tokens and among 2,048, without a kernel's latency: twice what 5,300
instructions of 32 warps and 2,200 of 8 take at one a clock and scheduler, as an H100 at 1 row."""

CLOCK_HZ: Final = 1.755e9
"""Clock rate at which the times above apply."""

CODEC_LAUNCHES: Final = 182
"""Kernel launches of one direction of Mimi; 183 for the encoder with eight codebooks, 180 for the decoder."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Milliseconds of one stage: by bytes, by arithmetic, by launches, and in total."""

    bytes_ms: float
    arithmetic_ms: float
    nodes_ms: float

    @property
    def ms(self) -> float:
        """The total milliseconds: launches do not overlap with work; bytes and arithmetic overlap."""
        return self.nodes_ms + max(self.bytes_ms, self.arithmetic_ms)


@dataclass(frozen=True, slots=True)
class Launches:
    """Numbers of kernels in a part of the language model: in bfloat16, and in INT8 for many rows, for at most
    16, and for at most 4.

    With INT4 weights any number of rows takes the kernels for many rows.
    """

    bfloat16: int
    int8: int
    short_int8: int
    few_int8: int

    def of(self, rows: int, bits: int) -> int:
        """The number of kernels of a tick over ``rows`` rows, with weights of 16, 8 or 4 bits."""
        if bits == 16:
            return self.bfloat16
        if bits == 4 or rows > SHORT_ROWS:
            return self.int8
        return self.few_int8 if rows <= FEW_ROWS else self.short_int8


LAYER: Final = Launches(10, 9, 9, 6)
CROSS: Final = Launches(6, 8, 8, 6)
DEPFORMER_LAYER: Final = Launches(8, 8, 6, 5)
STEP_LAUNCHES: Final = 3
"""Kernels of a depformer step without its layers: token embedding, head, choice of a token."""

OTHER_LAUNCHES: Final = 22
"""Kernels of delays, embeddings, text and positions."""


@dataclass(frozen=True, slots=True)
class TickWork:
    """The work of a model's tick on a GPU, all rows at full context.

    ``weights_bytes`` are read once, ``frame_bytes`` for each frame of a row's context, ``row_bytes`` for a
    row of any age. ``passes`` is the number of Mimi's directions in use: encode, decode, or both. The
    language model has ``layers`` layers, of which ``cross_layers`` attend to a voice, and a depformer of
    ``steps`` steps with ``step_layers`` layers each. Their weights have ``weight_bits`` bits: 16, 8 or 4. A
    backend reports all fields as numbers (``BackendInfo.work``).
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
    weight_bits: int

    def launches(self, rows: int) -> int:
        """Number of kernels that the language model launches in a tick."""
        parts = (
            (self.layers, LAYER),
            (self.cross_layers, CROSS),
            (self.steps * self.step_layers, DEPFORMER_LAYER),
        )
        layers = sum(count * part.of(rows, self.weight_bits) for count, part in parts)
        return layers + self.steps * STEP_LAUNCHES + OTHER_LAUNCHES

    def tick_ms(self, rows: int, card: GpuCard) -> float:
        """The milliseconds of a tick with this number of ready rows: all stages in turn, and the host's
        part.
        """
        codec = codec_cost(rows, card, CODEC_LAUNCHES)
        host_ms = 1000 * (card.host_s + START_S)
        return host_ms + self.passes * codec.ms + self.model_cost(rows, self.context, card).ms

    def model_cost(self, rows: int, frames: int, card: GpuCard, launches: int | None = None) -> StageCost:
        """Cost of the language model: for rows with ``frames`` frames in their rings, with the given number
        of launches if known.
        """
        filled = min(frames, self.context)
        slots = filled + UNFILLED_SHARE * (self.context - filled)
        ring_bytes = rows * (self.frame_bytes * slots + self.row_bytes)
        weights_s = product_s(self.weights_bytes, rows, card, self.weight_bits)
        ring_s = ring_bytes / (RING_SHARE * card.copy_bytes_per_s)
        nodes = self.launches(rows) if launches is None else launches
        kernels_s = nodes * KERNEL_S + TEXT_CHOICE_S + self.steps * CODE_CHOICE_S
        nodes_s = nodes * card.node_s + kernels_s * CLOCK_HZ / card.clock_hz
        return StageCost(1000 * (weights_s + ring_s), 0.0, 1000 * nodes_s)


def product_s(weights_bytes: int, rows: int, card: GpuCard, bits: int) -> float:
    """Seconds of a wide product: the weights are read once from memory, and the tiles from the cache.

    Each tile of rows reads all weights, and each tile of columns reads a tile's rows once more. With weights
    of 4 bits the instructions may take longer than both.
    """
    is_paired = bits == 4
    tile = paired_tile_of(rows) if is_paired else tile_of(rows, MANY_COLUMNS + 1)
    tiles, inputs = -(-rows // tile.rows), tile.rows / tile.columns * (2 if is_paired else 1)
    memory_s = weights_bytes / (PRODUCT_SHARE * card.copy_bytes_per_s)
    cache_s = weights_bytes * tiles * (1 + inputs) / card.cache_bytes_per_s
    instructions = PAIRED_INSTRUCTIONS[tile.rows] if is_paired else 0
    clocks = weights_bytes / 1024 * tiles * instructions * PAIRED_STALLS
    return max(memory_s, cache_s, clocks / (card.units * card.clock_hz))


def codec_cost(rows: int, card: GpuCard, launches: int) -> StageCost:
    """Cost of one direction of Mimi."""
    arithmetic_s = rows * CODEC_FLOP / card.float32_flop_per_s
    bytes_s = rows * CODEC_BYTES / card.copy_bytes_per_s
    nodes_s = launches * (card.node_s + CODEC_KERNEL_S * CLOCK_HZ / card.clock_hz)
    return StageCost(1000 * bytes_s, 1000 * arithmetic_s, 1000 * nodes_s)


def rows_computed(work: TickWork, card: GpuCard, limit_ms: float, at_most: int) -> int:
    """The largest number of ready rows, up to ``at_most``, whose computed tick is within the limit; at least
    1.
    """
    low, high = 1, max(1, at_most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if work.tick_ms(middle, card) <= limit_ms else (low, middle - 1)
    return low

"""Computes how many sessions an Apple chip should hold. The arithmetic compares the bytes that a tick reads
with the bandwidth.

  python -m lab.bench.mlx_sessions            the table, as in docs/mac.md

Computed, not measured. A tick reads every weight once for all sessions, and for each session its keys and
values and the codec's. It has 40 ms: latency is between one and two ticks, and two have to fit into a frame's
80. A single session does not wait for another tick, so its own may take all 80. Bandwidths and memories are
Apple's published ones, of which a share is assumed. Arithmetic units, launches and the operating system's own
needs are not included, so a machine holds this number or fewer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from antiphon.models.published import MIMI_CONFIG, MOSHI_CONFIG
from lab.bench.published import STT_1B

TICK_S: Final = 0.040
ALONE: Final = 2
"""Factor on the length of a tick if there is only one session."""
BANDWIDTH_SHARE: Final = 0.7
"""Share of a chip's published bandwidth that streaming kernels reach: an assumption."""
MEMORY_SHARE: Final = 0.7
"""Share of all memory that macOS lets a GPU use: about two thirds to three quarters."""
BF16: Final = 2.0
Q8: Final = 1 + 4 / 64
"""Bytes a weight: 8 bits, and a scale and a bias of 16 for each 64."""
Q4: Final = 0.5 + 4 / 32
"""4 bits, and a scale and a bias of 16 for each 32."""
KV8: Final = 1 + 4 / 128
"""Bytes of a number in an 8-bit ring, in groups of a head's 128."""
MIMI_PARAMETERS: Final = 79.3e6
"""Parameters without codebooks, of which a search reads every table in use; float32, half of them to
encode."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip: its published memory bandwidth, and its largest memory."""

    name: str
    gb_per_s: float
    memory_gb: float


CHIPS: Final = (
    Chip("M2", 100, 24),
    Chip("M4", 120, 32),
    Chip("M4 Pro", 273, 64),
    Chip("M4 Max", 546, 128),
    Chip("M3 Ultra", 819, 512),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes that a tick reads and that a machine stores: once for all sessions, and for each session of
    full context."""

    weights_read: float
    weights_held: float
    session_read: float
    session_held: float

    def sessions(self, chip: Chip) -> tuple[int, str]:
        """Return the number of sessions that a chip holds, and what limits it: "bandwidth" or "memory"."""
        readable = chip.gb_per_s * 1e9 * BANDWIDTH_SHARE * TICK_S
        by_bandwidth = int(max(0.0, readable - self.weights_read) / self.session_read)
        if not by_bandwidth and self.weights_read + self.session_read <= ALONE * readable:
            by_bandwidth = 1
        by_memory = int(max(0.0, chip.memory_gb * 1e9 * MEMORY_SHARE - self.weights_held) / self.session_held)
        return min(by_bandwidth, by_memory), "bandwidth" if by_bandwidth <= by_memory else "memory"


def _layer_parameters(dim: int, feed_forward: float) -> int:
    """A gated layer: four square projections, and three of two thirds of the feed-forward's width."""
    return 4 * dim * dim + 3 * dim * int(2 * feed_forward / 3)


def read_parameters(lm: Mapping[str, Any]) -> int:
    """Return the number of weights of a language model that every tick reads: layers, heads, all depformer
    steps."""
    dim = lm["dim"]
    count: int = lm["num_layers"] * _layer_parameters(dim, lm["hidden_scale"] * dim) + dim * lm["text_card"]
    if lm["dep_q"]:
        inner = lm["depformer_dim"]
        layers = lm["depformer_num_layers"] * _layer_parameters(inner, lm["depformer_dim_feedforward"])
        count += lm["dep_q"] * (layers + dim * inner + inner * lm["card"])
    return count


def table_parameters(lm: Mapping[str, Any]) -> int:
    """Return the number of weights that are looked up a row at a time: stored, but almost not read."""
    count: int = lm["dim"] * (lm["n_q"] * (lm["card"] + 1) + lm["text_card"] + 1)
    if lm["dep_q"]:
        entries = (lm["dep_q"] - 1) * (lm["card"] + 1) + lm["text_card"] + 1
        count += lm["depformer_dim"] * entries
    return count


def load_of(lm: Mapping[str, Any], weight_bytes: float, kv_bytes: float) -> Load:
    """Return the load of a model with this number of bytes per weight, and per number in its rings."""
    ways = 2 if lm["dep_q"] else 1  # a model without audio output decodes nothing
    heard = lm["n_q"] - lm["dep_q"]
    tables = heard * MIMI_CONFIG["quantizer"]["bins"] * MIMI_CONFIG["quantizer"]["dimension"]
    mimi_read = 4 * (ways * MIMI_PARAMETERS / 2 + tables)
    transformer = MIMI_CONFIG["transformer"]
    mimi_ring = 4 * 2 * transformer["num_layers"] * transformer["d_model"] * transformer["context"]
    session = 2 * lm["num_layers"] * lm["dim"] * lm["context"] * kv_bytes + ways * mimi_ring
    read = read_parameters(lm) * weight_bytes + mimi_read
    held = (read_parameters(lm) + table_parameters(lm)) * weight_bytes + 4 * 96.1e6
    return Load(read, held, session, session)


MODELS: Final[Mapping[str, Load]] = {
    "moshi-7b q8": load_of(MOSHI_CONFIG, Q8, BF16),
    "moshi-7b q4": load_of(MOSHI_CONFIG, Q4, BF16),
    "moshi-7b q4, 8-bit rings": load_of(MOSHI_CONFIG, Q4, KV8),
    "stt-1b bf16": load_of(STT_1B, BF16, BF16),
    "stt-1b q8": load_of(STT_1B, Q8, BF16),
    "stt-1b q4, 8-bit rings": load_of(STT_1B, Q4, KV8),
}


def table() -> str:
    """Return the table in Markdown."""
    head = ["model", "weights read, GB", "a session, MB", *(f"{c.name}, {c.gb_per_s:g} GB/s" for c in CHIPS)]
    lines = [head, ["---"] * len(head)]
    for name, load in MODELS.items():
        cells = [name, f"{load.weights_read / 1e9:.2f}", f"{load.session_read / 1e6:.0f}"]
        for chip in CHIPS:
            sessions, limit = load.sessions(chip)
            cells.append(f"{sessions}" + (" (memory)" if limit == "memory" and sessions else ""))
        lines.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main(argv: list[str]) -> int:
    """Run the command line; returns the exit status."""
    if argv:
        print(__doc__)
        return 0 if argv[0] in ("-h", "--help") else 2
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

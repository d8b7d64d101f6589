"""What is known of a card: its rates, from which costs are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A card's constants.

    ``memory_bytes`` are all that a program sees, ``cache_bytes_per_s`` is of its second cache. Kernels run
    on ``units`` at ``clock_hz``. ``node_s`` is what one more kernel in a graph costs: 1.2 us between kernels
    and 1.6 us of its own latency. ``host_s`` is what the host adds to a tick. ``is_measured``: a run on this
    card has confirmed them.
    """

    name: str
    memory_bytes: float
    copy_bytes_per_s: float
    cache_bytes_per_s: float
    float32_flop_per_s: float
    units: int
    clock_hz: float
    node_s: float = 2.8e-6
    host_s: float = 0.35e-3
    is_measured: bool = False

    @property
    def label(self) -> str:
        """What a number made of these constants is."""
        return f"on {self.name}'s measured constants" if self.is_measured else "computed, not measured"


H200: Final = GpuCard("H200", 150.0e9, 4.3e12, 5.5e12, 30e12, 132, 1.755e9)
H100: Final = GpuCard("H100", 85.0e9, 3.0e12, 5.5e12, 30e12, 132, 1.755e9)
A100: Final = GpuCard("A100", 85.0e9, 1.8e12, 4.0e12, 8.7e12, 108, 1.41e9)
L40S: Final = GpuCard("L40S", 47.7e9, 0.78e12, 4.5e12, 41e12, 142, 2.52e9)
RTX_4090: Final = GpuCard("RTX 4090", 25.3e9, 0.91e12, 5.0e12, 37e12, 128, 2.52e9)
L4: Final = GpuCard("L4", 23.6e9, 0.27e12, 1.8e12, 13.6e12, 58, 2.04e9)
"""Of datasheets: nine tenths of the memory's rate, 45 % of the float32 rate, the highest clock. The rates of
second caches are estimates."""

DRIVER_NAMES: Final = {
    "NVIDIA H200": H200,
    "NVIDIA H100 80GB HBM3": H100,
    "NVIDIA A100-SXM4-80GB": A100,
    "NVIDIA L40S": L40S,
    "NVIDIA GeForce RTX 4090": RTX_4090,
    "NVIDIA L4": L4,
}
"""By the driver's whole name. Of an H100 PCIe, an H100 NVL, a GH200 or a slice of MIG other rates hold."""

CARDS: Final = tuple(DRIVER_NAMES.values())
"""Those whose constants are written down, the largest first."""


def card_called(name: str) -> GpuCard | None:
    """The card of a device of this name, as the driver gives it; None where its constants are not known."""
    return DRIVER_NAMES.get(name)

"""What is known of a card: its rates, from which costs are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A card's constants.

    ``cache_bytes_per_s`` is of its second cache, ``node_s`` what one more kernel in a graph costs: 1.2 us
    between kernels and 1.6 us of its own latency. ``host_s`` is what the host adds to a tick.
    ``is_measured``: a run on this card has confirmed them.
    """

    name: str
    copy_bytes_per_s: float
    cache_bytes_per_s: float
    float32_flop_per_s: float
    node_s: float
    host_s: float
    is_measured: bool

    @property
    def label(self) -> str:
        """What a number made of these constants is."""
        return f"on {self.name}'s measured constants" if self.is_measured else "computed, not measured"


H200: Final = GpuCard("H200", 4.3e12, 5.5e12, 30e12, 2.8e-6, 0.35e-3, is_measured=False)
H100: Final = GpuCard("H100", 3.0e12, 5.5e12, 30e12, 2.8e-6, 0.35e-3, is_measured=False)
DRIVER_NAMES: Final = {"NVIDIA H200": H200, "NVIDIA H100 80GB HBM3": H100}
"""By the driver's whole name. Of an H100 PCIe, an H100 NVL, a GH200 or a slice of MIG other rates hold."""

CARDS: Final = tuple(DRIVER_NAMES.values())
"""Those whose constants are written down."""


def card_called(name: str) -> GpuCard | None:
    """The card of a device of this name, as the driver gives it; None where its constants are not known."""
    return DRIVER_NAMES.get(name)

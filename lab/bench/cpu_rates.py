"""Measures the limits of a CPU: bytes read per second, and products of float32, bfloat16 and INT8 by
torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from lab.bench.harness import Values
from lab.bench.turns import clock

PROBE_FLOATS: Final = 1 << 26
"""A quarter of a gigabyte, larger than any cache."""
PROBE_SIDE: Final = 1024
PROBE_TURNS: Final = 8
INT8_UNITS: Final = {"amx_int8": "AMX", "avx512_vnni": "VNNI", "avx_vnni": "VNNI", "asimddp": "dot products"}
"""The instructions for INT8 products, by their flag in ``/proc/cpuinfo``, the fastest first."""
FLOAT32, INT8 = "float32", "int8"


@dataclass(frozen=True, slots=True)
class Rates:
    """The bytes read per second, and the multiplications per second of each kind of number; ``int8_unit`` is
    the instruction for INT8."""

    bytes_s: float
    float32_s: float
    bfloat16_s: float
    int8_s: float
    int8_unit: str

    def least_s(self, read_bytes: float, products: float, kind: str) -> float:
        """Return the minimum seconds for ``read_bytes`` and ``products``: the longer of the times to read and
        to multiply."""
        return max(read_bytes / self.bytes_s, products / (self.int8_s if kind == INT8 else self.float32_s))

    def to_json(self) -> Values:
        """Return the rates by name."""
        return asdict(self)

    def __str__(self) -> str:
        """The rates as text."""
        return (
            f"{self.bytes_s / 1e9:.1f} GB/s read, {self.float32_s / 1e9:.0f} G products of float32 a second, "
            f"{self.bfloat16_s / 1e9:.0f} of bfloat16, {self.int8_s / 1e9:.0f} of INT8 ({self.int8_unit})"
        )


def measure_rates(threads: int, *, floats: int = PROBE_FLOATS, side: int = PROBE_SIDE) -> Rates:
    """Measure the rates by torch: the best of several sums over ``floats`` numbers, and of several products
    of square matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        numbers, square = torch.ones(floats), torch.ones(side, side)
        half, integers = square.bfloat16(), square.to(torch.int8)
        multiply: Any = torch._int_mm  # torch.matmul does not support INT8
        return Rates(
            bytes_s=4 * floats / _best_s(numbers.sum),
            float32_s=side**3 / _best_s(lambda: square @ square),
            bfloat16_s=side**3 / _best_s(lambda: half @ half),
            int8_s=side**3 / _best_s(lambda: multiply(integers, integers)),
            int8_unit=int8_unit(),
        )
    finally:
        torch.set_num_threads(before)


def int8_unit(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the instruction for INT8 products on this CPU."""
    flags = set(cpuinfo.read_text().split()) if cpuinfo.is_file() else set()
    return next((unit for flag, unit in INT8_UNITS.items() if flag in flags), "no unit of its own")


def _best_s(call: Callable[[], object]) -> float:
    now, times = clock(), []
    for _ in range(PROBE_TURNS):
        start_s = now()
        call()
        times.append(now() - start_s)
    return min(times)

"""What the machine has, as far as the choice of a backend depends on it; asked without any framework."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

_CUDA_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")


@dataclass(frozen=True, slots=True)
class Machine:
    """Whether CUDA sees a GPU, and whether this is Apple silicon."""

    has_cuda: bool = False
    is_apple_silicon: bool = False


def look_at_machine() -> Machine:
    """Find out."""
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return Machine(has_cuda=_cuda_devices() > 0, is_apple_silicon=is_apple)


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, or what the platform calls it."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cuda_devices() -> int:
    """How many GPUs the NVIDIA driver offers this process; importing torch to ask takes over a second."""
    for name in _CUDA_LIBRARIES:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
    return 0

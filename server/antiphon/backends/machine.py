"""The hardware that determines the choice of backend and threads, read without any framework."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon.cores import usable_cores
from antiphon.errors import ConfigError

_CUDA_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_CAPABILITY_ATTRIBUTES: Final = (75, 76)
"""The driver's attribute ids for a GPU's compute capability, major and minor."""

LEAST_CAPABILITY: Final = (8, 0)
"""Minimum compute capability for our Triton kernels: A100, RTX 30 and later."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of a machine: whether CUDA has a GPU, and whether it is Apple silicon."""

    has_cuda: bool = False
    is_apple_silicon: bool = False


def detect_machine() -> Machine:
    """Detect the hardware of this machine."""
    is_apple, driver = platform.system() == "Darwin" and platform.machine() == "arm64", _driver()
    return Machine(has_cuda=driver is not None and _count(driver) > 0, is_apple_silicon=is_apple)


CPUINFO: Final = Path("/proc/cpuinfo")

INSTRUCTIONS: Final = (
    ("amx_int8", "AMX"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("avx_vnni", "AVX-VNNI"),
    ("avx512f", "AVX-512 without VNNI"),
    ("avx2", "AVX2 without VNNI"),
    ("i8mm", "NEON I8MM"),
    ("asimddp", "NEON dot products"),
)
"""Flags of instructions for products of bytes, best first, and their names."""

VNNI: Final = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""Flags of CPUs whose products of bytes do not saturate."""

WITHOUT_VNNI: Final = "INT8 and INT4 take 1.2 to 1.7 times as long as with VNNI"
"""Measured on one processor, restricted to AVX2: docs/benchmarks/cpu-models.md."""


def _cpu_line(cpuinfo: Path, *names: str) -> str:
    """The value of the first line of ``cpuinfo`` with one of these names, or ""."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name from the system, or the platform's name for it, with its instructions for INT8."""
    name = _cpu_line(cpuinfo, "model name") or platform.processor() or platform.machine()
    return ", ".join(filter(None, (name, instructions(cpuinfo))))


def instructions(cpuinfo: Path = CPUINFO) -> str:
    """The name of the CPU's best instructions for products of bytes, or ""."""
    flags = _cpu_line(cpuinfo, "flags", "Features").split()
    return next((name for flag, name in INSTRUCTIONS if flag in flags), "")


def has_vnni(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the CPU's flags guarantee sums of byte products in 32 bits; other x86 CPUs saturate in 16."""
    return not VNNI.isdisjoint(_cpu_line(cpuinfo, "flags").split())


def trim_memory() -> None:
    """Return freed memory to the system. Only glibc needs this: otherwise it keeps a part of the freed
    memory.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: the driver's name for it, its total memory and its compute capability."""

    name: str
    memory_bytes: int
    capability: tuple[int, int] = LEAST_CAPABILITY

    @property
    def runs_kernels(self) -> bool:
        """Whether this project's Triton kernels run on the GPU."""
        return self.capability >= LEAST_CAPABILITY


def list_gpus() -> list[Gpu]:
    """The GPUs that the NVIDIA driver offers this process, found without torch, whose import takes over a
    second."""
    driver = _driver()
    if driver is None:
        return []
    gpus = []
    for index in range(_count(driver)):
        device, name, size = ctypes.c_int(0), ctypes.create_string_buffer(100), ctypes.c_size_t(0)
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetName(name, len(name), device)
        driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        parts = [_attribute(driver, number, device) for number in _CAPABILITY_ATTRIBUTES]
        gpus.append(Gpu(name.value.decode(errors="replace"), size.value, (parts[0], parts[1])))
    return gpus


def _driver() -> ctypes.CDLL | None:
    """The initialised library of the driver, or None."""
    for name in _CUDA_LIBRARIES:
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        if driver.cuInit(0) == 0:
            return driver
    return None


def _attribute(driver: ctypes.CDLL, number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int(0)
    driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _count(driver: ctypes.CDLL) -> int:
    count = ctypes.c_int(0)
    return count.value if driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def model_threads(asked: int | None = None) -> int:
    """The number of a model's threads: ``asked``, or by default all usable cores but one, at least one.

    Sockets and Opus run during every step. If each core has a model thread, a step waits for whichever thread
    is suspended: with one other busy process on two cores, a step of the built-in codec took 52 ms with two
    threads on each product and 10 ms with one (medians, one row). Graphs whose threads share rows instead use
    all cores (docs/adr/0021-ready-rows.md).

    Raises:
        ConfigError: fewer than one was requested.
    """
    if asked is None:
        return max(1, usable_cores() - 1)
    if asked < 1:
        raise ConfigError(f"threads is {asked}; a model needs at least 1")
    return asked


_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def process_bytes() -> int:
    """Resident memory of this process in bytes; on a system without /proc, its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def host_bytes(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Memory available to this process: the memory of the machine, or the limit of its container if that is
    less.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total

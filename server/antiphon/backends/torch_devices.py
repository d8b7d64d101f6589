"""Chooses the device and the dtype of a backend on torch, and reads the device's properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from numpy.typing import NDArray

from antiphon.backends.machine import model_threads
from antiphon.errors import ConfigError

DEVICE_TYPES: Final = ("cpu", "cuda")
"""The devices of steps. Metal (mps) lacks float64, which exact sampling needs; other devices are untested."""


DTYPES: Final = MappingProxyType(
    {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
)


def pick_device(name: str | None) -> torch.device:
    """Resolve a device name; None means CUDA if there is a GPU, "cuda" the first GPU, "cuda:N" another one.

    Raises:
        ConfigError: the device is unknown, or neither a CPU nor CUDA, or torch finds no such GPU.
    """
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"no device is called '{name}': {error}") from error
    if device.type not in DEVICE_TYPES:
        hint = "; on Apple silicon the GPU is --backend mlx's" if device.type == "mps" else ""
        raise ConfigError(
            f"device {name} was requested, but torch runs models on {' or '.join(DEVICE_TYPES)} only{hint}"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name} was requested, but this torch ({torch.__version__}) has no GPU")
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name} was requested, but there are only {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", device.index or 0)


def open_device(name: str | None, threads: int | None) -> torch.device:
    """The device called ``name``; on a CPU, torch gets ``threads`` threads, process-wide.

    Raises:
        ConfigError: as :func:`pick_device` and :func:`antiphon.backends.machine.model_threads`.
    """
    device, cpu_threads = pick_device(name), model_threads(threads)
    if device.type == "cpu":
        torch.set_num_threads(cpu_threads)
    return device


def pick_dtype(name: str | None, device: torch.device, names: Sequence[str]) -> torch.dtype:
    """A language model's dtype, one of ``names``; None means float32 on a CPU and bfloat16 elsewhere.

    Raises:
        ConfigError: an unknown dtype.
    """
    if name is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in names:
        raise ConfigError(f"no dtype is called '{name}'; there are: {', '.join(names)}")
    return DTYPES[name]


def device_bytes(device: torch.device) -> dict[str, int]:
    """The device's part of ``BackendInfo.memory``: for a GPU ``total``, nothing for a CPU.

    ``total`` is the GPU's free memory plus the memory that torch holds in this process; the rest belongs to
    other processes.
    """
    if device.type != "cuda":
        return {}
    free, _ = torch.cuda.mem_get_info(device)
    return {"total": free + torch.cuda.memory_reserved(device)}


def device_name(device: torch.device) -> str:
    """The driver's name for a GPU; "" for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def memory_in_use() -> dict[str, tuple[int, int]]:
    """Bytes in use and in total, for every GPU this process uses, by device; from any thread.

    A GPU on which torch holds no memory is not queried, because the query would create a context there of
    about 400 MB.
    """
    if not torch.cuda.is_initialized():
        return {}
    found = {}
    for index in filter(torch.cuda.memory_reserved, range(torch.cuda.device_count())):
        free, total = torch.cuda.mem_get_info(index)
        found[f"cuda:{index}"] = (total - free, total)
    return found


def device_probe(device: torch.device) -> Callable[[], None]:
    """Make the probe for a device: no effect on a CPU; on CUDA it frees memory and waits for one kernel."""

    def probe() -> None:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.zeros(1, device=device).add_(1).item()

    return probe


def to_numpy(tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    """Convert tensors to numpy arrays, bfloat16 to the uint16 of the same bits."""
    return {
        name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
        for name, tensor in tensors.items()
    }

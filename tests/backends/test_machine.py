"""Hardware detection with a fake NVIDIA driver."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from antiphon.backends import machine
from antiphon.backends.machine import Gpu, detect_machine, list_gpus, process_bytes, trim_memory


class Driver:
    """Two GPUs, behind the functions of the driver's library that are asked."""

    NAMES = (b"A large card", b"A small card")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 (the library's own names)
        count._obj.value = len(self.NAMES)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = 7 + index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:  # noqa: N802
        name.value = self.NAMES[device.value - 7][: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: ctypes.c_int) -> int:  # noqa: N802
        size._obj.value = 80 * 10**9 // (device.value - 6)
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: ctypes.c_int) -> int:  # noqa: N802
        value._obj.value = {75: 9 - 2 * (device.value - 7), 76: 5 * (device.value - 7)}[number]
        return 0


def test_the_gpus_of_the_driver_have_names_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_driver", Driver)
    large, small = list_gpus()
    assert (large, small) == (
        Gpu("A large card", 80 * 10**9, (9, 0)),
        Gpu("A small card", 40 * 10**9, (7, 5)),
    )
    assert large.runs_kernels
    assert not small.runs_kernels
    assert detect_machine().has_cuda


def test_without_a_driver_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_driver", lambda: None)
    assert list_gpus() == []
    assert not detect_machine().has_cuda


def test_freed_memory_goes_back_to_the_system() -> None:
    """The last piece stays, so that what lies below it is not at the heap's end."""
    piece_bytes = 60_000
    pieces = [b"x" * piece_bytes for _ in range(1000)]
    last = pieces[-1]
    held = process_bytes()
    pieces.clear()
    trim_memory()
    assert held - process_bytes() > 30_000_000
    assert len(last) == piece_bytes

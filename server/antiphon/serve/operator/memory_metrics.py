"""Metrics for Prometheus of the memory of a process and of its device. The module does not import the
server.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from antiphon.backends.machine import host_bytes, process_bytes
from antiphon.metrics import read_family


def watch_engine_process(registry: CollectorRegistry) -> None:
    """Report the memory of a process with engines and without conversations, and of its device."""
    registry.register(MemoryCollector())
    ProcessCollector(registry=registry)


class MemoryCollector(Collector):
    """Reads the memory of the process and of its device."""

    def collect(self) -> Iterable[Metric]:
        """The bytes in use and the limit of the process's memory, and of each device's memory."""
        yield read_family("process_memory_bytes", process_bytes())
        yield read_family("memory_limit_bytes", host_bytes())
        yield from _device_memory()


def _device_memory() -> Iterable[Metric]:
    used = read_family("device_memory_bytes")
    limit = read_family("device_memory_limit_bytes")
    # Only backends that run on torch load it: this layer imports no framework.
    devices = sys.modules.get("antiphon.backends.torch_devices")
    for device, (in_use, total) in devices.memory_in_use().items() if devices is not None else ():
        used.add_metric((device,), in_use)
        limit.add_metric((device,), total)
    yield used
    yield limit

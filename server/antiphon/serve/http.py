"""What operators and tools ask over plain HTTP: health, readiness, metrics, and what is running here."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from antiphon import __version__
from antiphon.engine.memory import process_bytes
from antiphon.models.persona import takes_persona
from antiphon.protocol.chat import parameter_ranges, parameters_to_json
from antiphon.serve.services import SERVICES, Services


async def healthz(request: web.Request) -> web.Response:
    """200 while the engine thread lives and moves; 503 with the reason when a restart is due."""
    health = request.app[SERVICES].engine.health()
    return web.Response(status=200 if health.is_healthy else 503, text=f"{health.detail}\n")


async def readyz(request: web.Request) -> web.Response:
    """200 while a new caller would be admitted at once; 503 with the reason when full, late or draining."""
    health = request.app[SERVICES].engine.health()
    if health.draining:
        words = f"draining: {health.active} sessions left"
    elif health.is_healthy and not health.ready and health.active < health.slots and not health.queued:
        words = f"late: {health.active} of {health.slots} rows taken, but frames miss their deadline"
    elif health.is_healthy and not health.ready:
        words = f"full: {health.active} of {health.slots} rows taken, {health.queued} callers wait"
    else:
        words = health.detail
    return web.Response(status=200 if health.ready else 503, text=f"{words}\n")


async def metrics(request: web.Request) -> web.Response:
    """Everything, in the Prometheus text format."""
    body = generate_latest(request.app[SERVICES].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def build_info(request: web.Request) -> web.Response:
    """What runs here, on what: all that a benchmark has to be read with."""
    return web.json_response(describe(request.app[SERVICES]))


async def modules_info(request: web.Request) -> web.Response:
    """The modules and their slots, in the shape of Kyutai's servers."""
    services = request.app[SERVICES]
    health = services.engine.health()
    module = {
        "type": services.engine.info.kind.value,
        "path": "/api/chat",
        "used_slots": health.active,
        "total_slots": health.slots,
    }
    return web.json_response([module])


async def models(request: web.Request) -> web.Response:
    """The models a caller may name, the server's own first: what the page draws its settings from."""
    return web.json_response({"models": [describe_model(request.app[SERVICES])]})


def describe_model(services: Services) -> dict[str, Any]:
    """One entry of ``/api/models``: what the model is, and what may be asked of it.

    ``parameters`` are the defaults (seeds are null: drawn anew for each caller), ``ranges`` their limits.
    ``voices`` is null for a model that takes no prompt.
    """
    info, health = services.engine.info, services.engine.health()
    takes_prompt = takes_persona(info.spec) and info.can_prime
    voices = services.voices.names() if services.voices is not None else []
    return {
        "name": info.spec.name,
        "kind": info.spec.kind.value,
        "slots": {"used": health.active, "queued": health.queued, "total": health.slots},
        "parameters": {**parameters_to_json(services.defaults), "text_seed": None, "audio_seed": None},
        "ranges": parameter_ranges(),
        "voices": voices if takes_prompt else None,
    }


def describe(services: Services) -> dict[str, Any]:
    """The answer of ``/api/build_info``."""
    info = services.engine.info
    health = services.engine.health()
    spec = info.spec
    return {
        "name": "antiphon",
        "version": __version__,
        "model": {
            "name": spec.name,
            "kind": spec.kind.value,
            "family": spec.family,
            "parameters": spec.parameters,
            "format": "antiphon" if services.checkpoint.manifest is not None else "moshi",
            "dtype": info.dtype,
            "quantization": info.quantization,
            "revision": services.checkpoint.revision,
            "sample_rate": spec.sample_rate,
            "frame_samples": spec.frame_samples,
            "silent_frames": spec.silent_frames,
        },
        "backend": {"name": info.name, "device": info.device, "buckets": list(info.buckets)},
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **info.versions},
        "memory_bytes": {"process": process_bytes(), **info.memory},
        "slots": {"used": health.active, "queued": health.queued, "total": health.slots},
    }


def hardware() -> Mapping[str, Any]:
    """The machine: processor, how many of them this process may use, and memory in bytes."""
    return {
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, or what the platform calls it."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""Answers to operators and tools over HTTP: metrics, versions, models and machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from antiphon import __version__
from antiphon.backends.machine import cpu_name, process_bytes
from antiphon.cores import usable_cores
from antiphon.models.prompt import takes_persona
from antiphon.models.published import TRANSLATING
from antiphon.protocol.chat import parameter_ranges, parameters_to_json
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.kinds import ROUTES
from antiphon.serve.routes.realtime import TRANSLATIONS
from antiphon.serve.routes.routing import Route, kinds_of


async def metrics(_request: web.Request, services: Services, _models: Sequence[ServedModel]) -> web.Response:
    """All metrics, in the Prometheus text format."""
    body = await services.status.metrics()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def build_info(
    _request: web.Request, _services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """Answer with the versions, the models and the machine, which the results of a benchmark depend on."""
    return web.json_response(describe(models))


def product() -> web.Response:
    """The part of :func:`build_info` that callers without a key may see."""
    return web.json_response({"name": "antiphon", "version": __version__})


async def modules_info(
    _request: web.Request, services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """The models and their slots, in the format of Kyutai's servers."""
    modules = []
    for model in models:
        health = model.engine.health()
        # One entry per model, for its first WebSocket: tools add up the slots.
        for route in ROUTES.get(model.kind, ())[:1]:
            is_default = services.models.default_of(kinds_of(route, ROUTES)) is model
            modules.append(
                {
                    "type": model.kind.value,
                    "path": route.path if is_default else f"/m/{quote(model.name)}{route.path}",
                    "used_slots": health.active,
                    "total_slots": health.slots,
                }
            )
    return web.json_response(modules)


async def list_models(
    _request: web.Request, services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """The models that a caller may name, in order of declaration, and whether the server accepts WebRTC.

    The web page builds its settings from this list.
    """
    agents = [
        {"name": it.name, "stt": it.stt.name, "tts": it.tts.name, "voice": it.voice}
        for it in services.agents.values()
    ]
    described = [describe_model(model, services) for model in models]
    further = {"agents": agents} if agents else {}
    return web.json_response(
        {"models": described, **further, **({"webrtc": True} if services.peers is not None else {})}
    )


def _paths(model: ServedModel, routes: Sequence[Route]) -> list[str]:
    translates = model.checkpoint.spec.family in TRANSLATING
    fitting = [route for route in routes if translates or route is not TRANSLATIONS]
    return list(dict.fromkeys(route.path for route in fitting if "{" not in route.path))


def describe_model(model: ServedModel, services: Services) -> dict[str, Any]:
    """One entry of ``/api/models``: the model and its parameters.

    ``paths`` are the model's routes, except for the routes of a single session. ``is_default``: it answers
    requests on these routes that name no model. ``parameters`` are the defaults (seeds are null, because they
    are random for each caller), ``ranges`` their limits. ``voices`` is null for a model without prompts.
    """
    info, health = model.engine.info, model.engine.health()
    takes_prompt = takes_persona(info.spec) and info.can_prime
    voices = model.voices.names() if model.voices is not None else []
    if model.speakers is not None:
        takes_prompt, voices = True, model.speakers.names()
    routes = ROUTES.get(model.kind, ())
    return {
        "name": model.name,
        "aliases": [it for it in services.models.aliases_of(model) if it not in services.agents],
        "kind": model.kind.value,
        "paths": _paths(model, routes),
        "is_default": any(services.models.default_of(kinds_of(route, ROUTES)) is model for route in routes),
        "is_ready": health.ready,
        "slots": {
            "used": health.active,
            "free": max(0, health.slots - health.active),
            "queued": health.queued,
            "total": health.slots,
        },
        "sample_rate": info.spec.sample_rate,
        "frame_samples": info.spec.frame_samples,
        "parameters": {**parameters_to_json(model.defaults), "text_seed": None, "audio_seed": None},
        "ranges": parameter_ranges(),
        "voices": voices if takes_prompt else None,
        "card": model_card(model),
    }


def model_card(model: ServedModel) -> dict[str, Any]:
    """The description of a model for people, from its manifest; without a manifest only its size is known."""
    manifest = model.checkpoint.manifest
    return {
        "description": "" if manifest is None else manifest.description,
        "license": "" if manifest is None else manifest.license,
        "examples": [] if manifest is None else list(manifest.examples),
        "voices": {} if manifest is None else dict(manifest.voices),
        "parameters": model.engine.info.spec.parameters,
    }


def describe(models: Sequence[ServedModel]) -> dict[str, Any]:
    """The answer of ``/api/build_info``: all facts about the first of these models, and the names of all
    models.
    """
    model = models[0]
    info = model.engine.info
    health = model.engine.health()
    spec = info.spec
    return {
        "name": "antiphon",
        "version": __version__,
        "model": {
            "name": model.name,
            "kind": spec.kind.value,
            "family": spec.family,
            "parameters": spec.parameters,
            "format": "antiphon" if model.checkpoint.manifest is not None else "moshi",
            "dtype": info.dtype,
            "quantization": info.quantization,
            "revision": model.checkpoint.revision,
            "sample_rate": spec.sample_rate,
            "frame_samples": spec.frame_samples,
            "delay_frames": spec.delay_frames,
        },
        "models": [each.name for each in models],
        "backend": {"name": info.name, "device": info.device, "threads": info.threads},
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), **info.versions},
        "memory_bytes": {"process": process_bytes(), **info.memory},
        "slots": {"used": health.active, "queued": health.queued, "total": health.slots},
    }


def hardware() -> Mapping[str, Any]:
    """The machine: processor, number of processors available to this process, and memory in bytes."""
    return {
        "cpu": cpu_name(),
        "cpus": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
    }

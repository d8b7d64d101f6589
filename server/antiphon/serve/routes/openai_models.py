"""Lists that OpenAI's clients read first: ``/v1/models``, ``/v1/models/{id}``, ``/v1/audio/voices``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from aiohttp import web

from antiphon.errors import FieldError, UnknownModelError
from antiphon.models.spec import PipelineKind
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.serve.access.callers import Caller
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.routes.routing import named_model, refusal_of

MODEL_PATH = "/v1/models/{id:.+}"


async def list_models(
    _request: web.Request, services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """The models that a client may name, each under all of its names."""
    data = [
        _described(model, name, services)
        for model in models
        for name in (model.name, *services.models.aliases_of(model))
    ]
    return web.json_response({"object": "list", "data": data})


async def one_model(request: web.Request, services: Services, _models: Sequence[ServedModel]) -> web.Response:
    """The response that describes the model of this name.

    Raises:
        web.HTTPNotFound: the model does not exist.
    """
    try:
        name = request.match_info["id"]
        return web.json_response(_described(services.models.find(name), name, services))
    except UnknownModelError as error:
        raise refusal_of(request, error) from error


async def list_voices(
    _request: web.Request, _services: Services, models: Sequence[ServedModel]
) -> web.Response:
    """The voices that a client may name, one entry for each model that has the voice.

    ``data`` is OpenAI's list; ``voices`` is the same list, for clients of other servers.
    """
    voices = [
        {
            "id": name,
            "object": "audio.voice",
            "name": name,
            "created_at": model.since_s,
            "type": "audio_sample",
            "model": model.name,
        }
        for model in models
        if model.speakers is not None
        for name in model.speakers.names()
    ]
    return web.json_response({"object": "list", "data": voices, "voices": voices})


def named_in_body(
    request: web.Request,
    services: Services,
    caller: Caller,
    name: str | None,
    kinds: Collection[PipelineKind],
) -> ServedModel:
    """The model named in the body, or in the path or the query.

    Raises:
        FieldError: the names differ.
    """
    named = named_model(request)
    if named is not None and name is not None and not services.models.are_one(named, name):
        raise FieldError(
            f"model is {(name or '')[:100]!r}, and the address names {(named or '')[:100]!r}",
            param="model",
            code=INVALID_VALUE,
        )
    return services.model_for(name if name is not None else named, caller, kinds)


def _described(model: ServedModel, name: str, services: Services) -> dict[str, Any]:
    """A model under one of its names; ``root`` is its own name. An agent has its own entry."""
    root = {} if name == model.name or name in services.agents else {"root": model.name}
    return {"id": name, "object": "model", "created": model.since_s, "owned_by": "antiphon", **root}

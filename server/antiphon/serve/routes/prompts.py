"""Turns the instructions and the voice that a caller names into a prompt, an agent, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from aiohttp import web

from antiphon.errors import (
    AudioError,
    CheckpointError,
    FieldError,
    ProtocolError,
    SessionFailedError,
    UnsupportedError,
)
from antiphon.models.prompt import Prompt, persona_prompt, takes_persona, wrap_text
from antiphon.protocol.chat import ChatRequest
from antiphon.protocol.fields import INVALID_VALUE
from antiphon.serve.calls.agent import Agent, AgentParts
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.hosting.services import Services
from antiphon.serve.media.duplex_voices import MAX_NAME
from antiphon.serve.routes.routing import plain_refusal
from antiphon.serve.routes.tts import voice_of


async def prompt_of(model: ServedModel, chat: ChatRequest, services: Services) -> Prompt | None:
    """The prompt of a request, made on a thread.

    Models that were not trained with prompts get no prompt, whatever the query, as with upstream's servers.

    Raises:
        web.HTTPBadRequest: the voice does not exist, the prompt is too long, or the backend supports no
            prompts. web.HTTPInternalServerError: a voice's file is broken.
    """
    info = model.engine.info
    if not takes_persona(info.spec) or not (chat.text_prompt or chat.voice_prompt):
        return None
    if not info.can_prime:
        raise web.HTTPBadRequest(text=f"the {info.name} backend reads no prompts; the torch backend does\n")
    try:
        return await services.helper.run(make_prompt, model, chat.text_prompt or "", chat.voice_prompt)
    except (ProtocolError, UnsupportedError) as error:
        raise plain_refusal(error) from error
    except (AudioError, CheckpointError) as error:
        name = (chat.voice_prompt or "")[:MAX_NAME]
        services.provoked.error(
            "voice cannot be used", of="voice", model=model.name, voice=name, reason=str(error)
        )
        raise web.HTTPInternalServerError(
            text=f"the voice {name!r} cannot be used; see the server's log\n"
        ) from error


async def prompt_of_session(
    services: Services, model: ServedModel, text: str, voice: str | None, event_id: str | None
) -> Prompt | None:
    """The prompt of an event protocol's session, None if the model supports none.

    An unknown voice is ignored, because clients name voices of their vendor.

    Raises:
        FieldError: the instructions are too long. SessionFailedError: a voice's file is broken.
    """
    if not (takes_persona(model.engine.info.spec) and model.engine.info.can_prime):
        return None
    voices = model.voices.names() if model.voices is not None else []
    voice = voice if voice in voices else None
    if not (text.strip() or voice):
        return None
    try:
        return await services.helper.run(make_prompt, model, text, voice)
    except (ProtocolError, UnsupportedError) as error:
        param = "session.instructions"
        raise FieldError(f"{param}: {error}", param=param, code=INVALID_VALUE, event_id=event_id) from error
    except (AudioError, CheckpointError) as error:
        services.provoked.error("voice cannot be used", of="voice", model=model.name, reason=str(error))
        raise SessionFailedError(f"the voice {voice!r} cannot be used; see the server's log") from error


def make_prompt(model: ServedModel, text: str, voice_name: str | None) -> Prompt:
    """Make a persona from a text and a voice; it blocks, so call it on a thread.

    Raises:
        ProtocolError, UnsupportedError: there is no such voice, or the prompt is too long.
        AudioError, CheckpointError: a voice's file is broken.
    """
    voice = None
    if voice_name is not None:
        if model.voices is None:
            raise ProtocolError("this server has no voices; it gets them with --voices DIR")
        voice = model.voices.load(voice_name)
    tokens: list[int] = []
    if text.strip():
        if model.tokenizer is None:
            raise UnsupportedError(f"{model.engine.info.spec.name} has no tokenizer for text_prompt")
        tokens = model.tokenizer.encode(wrap_text(text))
    return persona_prompt(model.engine.info.spec, tokens, voice)


async def voice_of_agent(agent: AgentParts, name: str | None, services: Services) -> Prompt | None:
    """The prompt of an agent's synthesiser for a voice; for an unknown voice, the prompt of the agent's own
    voice.

    Raises:
        SessionFailedError: the voice's file is broken.
    """
    speakers = agent.tts.speakers
    is_known = name is not None and speakers is not None and name in speakers.names()
    return (await voice_of(agent.tts, name if is_known else agent.voice, services)).prompt


async def participant_of(
    agent: AgentParts,
    services: Services,
    *,
    instructions: str = "",
    voice: str | None = None,
    fills_gaps: bool,
) -> Agent:
    """An agent for one call, with ``instructions`` in place of its configured ones, and the voice of
    :func:`voice_of_agent`.

    With ``fills_gaps`` silence replaces overdue audio of the caller.

    Raises:
        SessionFailedError: the voice's file is broken.
    """
    settings = replace(agent.settings, instructions=instructions or agent.settings.instructions)
    prompt, numbers = await voice_of_agent(agent, voice, services), count()
    return Agent(
        replace(agent, settings=settings),
        services.clock,
        voice=prompt,
        new_id=lambda kind: f"{kind}_{next(numbers)}",
        fills_gaps=fills_gaps,
    )

"""Makes the voice agents of one server from their configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from antiphon.agent.config import AgentConfig
from antiphon.agent.text_model import Endpoint, TextModel
from antiphon.agent.turns import TurnRules
from antiphon.agent.values import AgentSettings
from antiphon.errors import ConfigError, TextModelError, nearest
from antiphon.log import Log
from antiphon.metrics import MetricFamilies
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.hosting.model_names import models_of
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.operator.metrics import AgentMetrics

MAX_HINT_CHARS: Final = 400
"""Maximum number of names in a hint: a text model's server may list any number."""


def make_agents(
    configured: Sequence[AgentConfig], models: Sequence[ServedModel], families: MetricFamilies
) -> dict[str, AgentParts]:
    """Make the configured agents, by name.

    Raises:
        ConfigError: its voice is not served, or :func:`models_of` fails.
    """
    agents: dict[str, AgentParts] = {}
    named = {model.name: model for model in models}
    for config in configured:
        stt, tts = (named[it] for it in models_of(config, {model.name: model.kind for model in models}))
        voices = [] if tts.speakers is None else tts.speakers.names()
        if config.voice is not None and config.voice not in voices:
            raise ConfigError(
                f"the agent {config.name!r} is to speak as {config.voice!r}, and {tts.name} has no such "
                f"voice; {nearest(config.voice, voices)}"
            )
        agents[config.name] = AgentParts(
            name=config.name,
            stt=stt,
            tts=tts,
            voice=config.voice,
            text_model=TextModel(
                [Endpoint(it.llm, it.llm_model, it.llm_key_env) for it in config.text_models]
            ),
            settings=AgentSettings(
                instructions=config.instructions,
                max_tokens=config.max_reply_tokens,
                turns=TurnRules(idle_ms=round(1000 * config.idle_s)),
            ),
            metrics=AgentMetrics(families, config.name),
            greeting=config.greeting,
            sorry=config.sorry,
            max_history_tokens=config.max_history_tokens,
        )
    return agents


async def check_text_models(agents: Mapping[str, AgentParts], log: Log) -> None:
    """Ask each agent's text model server for its models, and log missing ones, while calls can already
    start."""
    for agent in agents.values():
        for endpoint in agent.text_model.endpoints:
            facts = {"agent": agent.name, "host": endpoint.host}
            try:
                names = await agent.text_model.models(endpoint)
                name = await agent.text_model.name(endpoint)
                if name not in names:
                    raise TextModelError(f"it has no model {name}; {nearest(name, names)[:MAX_HINT_CHARS]}")
            except TextModelError as error:
                log.warning("text model cannot be used yet", **facts, reason=str(error))
            else:
                log.info("text model found", **facts, model=name)

"""The voice agents of one server: from their configuration to what their calls are made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from antiphon.agent.config import AgentConfig, TextModelConfig
from antiphon.agent.text_model import Endpoint, TextModel
from antiphon.agent.turns import TurnRules
from antiphon.agent.values import AgentSettings
from antiphon.errors import ConfigError, TextModelError, nearest
from antiphon.log import Log
from antiphon.metrics import MetricFamilies
from antiphon.models.spec import PipelineKind
from antiphon.serve.calls.agent import AgentParts
from antiphon.serve.hosting.served import ServedModel
from antiphon.serve.operator.metrics import AgentMetrics


def make_agents(
    configured: Sequence[AgentConfig], models: Sequence[ServedModel], families: MetricFamilies
) -> dict[str, AgentParts]:
    """Each agent by its name.

    Raises:
        ConfigError: one has the name of a model, or names a model or a voice that is not served, or a
            variable that is not set.
    """
    agents: dict[str, AgentParts] = {}
    for config in configured:
        if any(model.name == config.name for model in models):
            raise ConfigError(f"the agent {config.name!r} has the name of a model here; give it its own")
        stt = _model(config, config.stt, PipelineKind.STT, models)
        tts = _model(config, config.tts, PipelineKind.TTS, models)
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
            text_model=TextModel([_endpoint(config.name, it) for it in config.text_models]),
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


def _model(
    config: AgentConfig, name: str | None, kind: PipelineKind, models: Iterable[ServedModel]
) -> ServedModel:
    """The model of this name and kind, or the only one of its kind."""
    fitting = {model.name: model for model in models if model.kind is kind}
    if name is not None and name in fitting:
        return fitting[name]
    if name is not None:
        raise ConfigError(
            f"the agent {config.name!r} has {kind} = {name!r}, and no {kind} model of that name is served; "
            f"{nearest(name, fitting)}"
        )
    if len(fitting) != 1:
        served = ", ".join(fitting) or "none"
        raise ConfigError(
            f"the agent {config.name!r} needs one {kind} model, and there are {len(fitting)}: {served}; "
            f"add one by --model, or set {kind} in [[agents]]"
        )
    return next(iter(fitting.values()))


def _endpoint(agent: str, config: TextModelConfig) -> Endpoint:
    if config.llm_key_env is not None and not os.environ.get(config.llm_key_env):
        raise ConfigError(
            f"the agent {agent!r} takes its text model's key from the environment variable "
            f"{config.llm_key_env}, which is not set"
        )
    return Endpoint(config.llm, config.llm_model, config.llm_key_env)


async def check_text_models(agents: Mapping[str, AgentParts], log: Log) -> None:
    """Ask each agent's text models for what they have, and log what is missing; calls may come meanwhile."""
    for agent in agents.values():
        for endpoint in agent.text_model.endpoints:
            facts = {"agent": agent.name, "host": endpoint.host}
            try:
                names = await agent.text_model.models(endpoint)
                name = await agent.text_model.name(endpoint)
                if name not in names:
                    raise TextModelError(f"it has no model {name}; {nearest(name, names)}")
            except TextModelError as error:
                log.warning("text model cannot be used yet", **facts, reason=str(error))
            else:
                log.info("text model found", **facts, model=name)

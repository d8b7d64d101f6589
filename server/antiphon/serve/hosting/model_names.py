"""The names of one server's models: from their checkpoints, from the configuration, and aliases."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from antiphon.agent.config import AgentConfig
from antiphon.config import ModelConfig
from antiphon.errors import ConfigError, nearest
from antiphon.models.catalog import load_checkpoint
from antiphon.models.checkpoint import Checkpoint
from antiphon.models.spec import PipelineKind

ANY: Final = "*"
NAME: Final = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
"""Names that clients of other servers use: ``whisper-1``, ``Systran/faster-whisper-small``."""


def name_models(
    entries: Sequence[ModelConfig], aliases: Sequence[str] = (), agents: Sequence[AgentConfig] = ()
) -> list[tuple[ModelConfig, str, Checkpoint]]:
    """Each entry with the name that callers use, and its checkpoint.

    Raises:
        ConfigError: two models have the same name, or an alias or an agent is invalid. CheckpointError: a
        checkpoint does not exist, or differs from its format.
    """
    named: dict[str, tuple[ModelConfig, str, Checkpoint]] = {}
    for entry in entries:
        checkpoint = load_checkpoint(entry.model, is_confined=not entry.outside_files)
        name = entry.name or checkpoint.spec.name
        if name in named:
            raise ConfigError(same_name(name))
        named[name] = entry, name, checkpoint
    kinds = {name: checkpoint.spec.kind for _, name, checkpoint in named.values()}
    read_aliases(aliases, kinds)
    for agent in agents:
        models_of(agent, kinds)
    return list(named.values())


def models_of(agent: AgentConfig, served: Mapping[str, PipelineKind]) -> tuple[str, str]:
    """The recogniser and the synthesiser of an agent; by default the only ones among the models ``served``.

    Raises:
        ConfigError: the agent has the name of a model, or names a model that is not served.
    """
    if agent.name in served:
        raise ConfigError(f"the agent {agent.name!r} has the name of a model here; use another name")

    def find(kind: PipelineKind, name: str | None) -> str:
        fitting = [known for known, its_kind in served.items() if its_kind is kind]
        if name is not None and name not in fitting:
            raise ConfigError(
                f"the agent {agent.name!r} has {kind} = {name!r}, and no {kind} model of that name is "
                f"served; {nearest(name, fitting)}"
            )
        if name is None and len(fitting) != 1:
            raise ConfigError(
                f"the agent {agent.name!r} needs one {kind} model, and there are {len(fitting)}: "
                f"{', '.join(fitting) or 'none'}; add one by --model, or set {kind} in [[agents]]"
            )
        return name or fitting[0]

    return find(PipelineKind.STT, agent.stt), find(PipelineKind.TTS, agent.tts)


def same_name(name: str) -> str:
    """The error's text for two models of one name."""
    return f"two models are called '{name}'; give them different names, as entries of [[models]] in a file"


def read_aliases(texts: Sequence[str], served: Mapping[str, PipelineKind]) -> list[tuple[str, str]]:
    """Each alias with the name of its model; ``served`` has the models by name and kind.

    Raises:
        ConfigError: an alias is not NAME=MODEL, names no served model, or is taken.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        alias, _, model = text.partition("=")
        if model not in served:
            words = f"no model {model!r} is served; {nearest(model, served)}"
            raise ConfigError(
                f"alias = {text!r}: {words}" if model else f"alias = {text!r}: write NAME=MODEL"
            )
        if alias != ANY and not NAME.fullmatch(alias):
            raise ConfigError(
                f"alias = {text!r}: a name has 1 to 100 letters, digits and . _ : / -, or is * for any other"
            )
        others = [name for known, name in pairs if known == alias]
        if alias == ANY:
            others = [name for name in others if served[name] is served[model]]
        if alias in served or others:
            words = (
                f"{alias} is a model here" if alias in served else f"{alias} is the model {others[0]} already"
            )
            raise ConfigError(f"alias = {text!r}: {words}")
        pairs.append((alias, model))
    return pairs


def hint_of(name: str, model: str) -> str:
    """A hint for serving ``model`` under an unused name; "" if ``name`` cannot be an alias."""
    return f"; to serve it under this name: --alias {name}={model}" if NAME.fullmatch(name) else ""
